// One chart: ECharts on a canvas, in the colours of the page, with the size of its box. Tooltips are drawn on the canvas
// too, so no text of a job ever becomes HTML.
import { BarChart, CustomChart, LineChart, ScatterChart, TreemapChart } from 'echarts/charts';
import { DataZoomComponent, GridComponent, LegendComponent, MarkLineComponent, TooltipComponent } from 'echarts/components';
import * as echarts from 'echarts/core';
import { CanvasRenderer } from 'echarts/renderers';
import { useContext, useEffect, useRef } from 'preact/hooks';
import { Theme } from './theme.jsx';

echarts.use([
  BarChart, CustomChart, LineChart, ScatterChart, TreemapChart, DataZoomComponent, GridComponent, LegendComponent,
  MarkLineComponent, TooltipComponent, CanvasRenderer,
]);

export { echarts };

// `onClick` gets ECharts' event; `onPoint` the place under the pointer in units of the axes, and whether it was clicked.
export function Chart({ option, label, height = 260, onClick, onPoint }) {
  const box = useRef(null);
  const chart = useRef(null);
  const clicked = useRef(onClick);
  clicked.current = onClick;
  const pointed = useRef(onPoint);
  pointed.current = onPoint;
  const { colours } = useContext(Theme);

  useEffect(() => {
    chart.current = echarts.init(box.current, null, { renderer: 'canvas' });
    chart.current.on('click', (event) => clicked.current?.(event));
    const point = (isClick) => (event) => pointed.current?.(chart.current.convertFromPixel('grid', [event.offsetX, event.offsetY]), isClick);
    chart.current.getZr().on('mousemove', point(false));
    chart.current.getZr().on('click', point(true));
    const seen = new ResizeObserver(() => chart.current.resize());
    seen.observe(box.current);
    return () => {
      seen.disconnect();
      chart.current.dispose();
    };
  }, []);

  useEffect(() => {
    const began = performance.now();
    chart.current.setOption(themed(option(colours), colours), { notMerge: true, lazyUpdate: false });
    performance.measure('chart', { start: began, end: performance.now(), detail: label });
  }, [option, colours]);

  return <div ref={box} class="chart" role="img" aria-label={label} style={{ height: `${height}px` }} />;
}

// A bitmap of cells as large as the place it has in the chart: a hundred thousand of them cost what one picture does.
// `shade(line, col)` is red, green, blue, or nothing where there is no cell.
export function cells(lines, columns, width, height, shade) {
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(width));
  canvas.height = Math.max(1, Math.round(height));
  const small = new ImageData(columns, lines);
  for (let line = 0; line < lines; line += 1) {
    for (let col = 0; col < columns; col += 1) {
      const colour = shade(line, col);
      if (colour) small.data.set([...colour, 255], 4 * (line * columns + col));
    }
  }
  const raw = document.createElement('canvas');
  raw.width = columns;
  raw.height = lines;
  raw.getContext('2d').putImageData(small, 0, 0);
  const context = canvas.getContext('2d');
  context.imageSmoothingEnabled = false;
  context.drawImage(raw, 0, 0, canvas.width, canvas.height);
  return canvas;
}

const axis = (given, colours) => ({
  axisLine: { lineStyle: { color: colours.line } },
  axisTick: { show: false },
  nameTextStyle: { color: colours.muted },
  nameLocation: 'middle',
  nameGap: 28,
  ...given,
  splitLine: { lineStyle: { color: colours.grid }, ...given.splitLine },
  axisLabel: { color: colours.muted, hideOverlap: true, ...given.axisLabel },
});

function themed(option, colours) {
  const all = (given) => (given == null ? undefined : Array.isArray(given) ? given.map((one) => axis(one, colours)) : axis(given, colours));
  return {
    animation: false,
    color: colours.series,
    textStyle: { fontFamily: 'system-ui, sans-serif', color: colours.text },
    ...option,
    grid: option.grid ?? { left: 64, right: 20, top: 34, bottom: 44 },
    xAxis: all(option.xAxis),
    yAxis: all(option.yAxis),
    legend: option.legend && { top: 0, left: 0, itemWidth: 14, itemHeight: 8, textStyle: { color: colours.text }, ...option.legend },
    tooltip: {
      renderMode: 'richText',
      confine: true,
      backgroundColor: colours.raised,
      borderColor: colours.line,
      textStyle: { color: colours.text, fontSize: 12 },
      ...option.tooltip,
    },
  };
}
