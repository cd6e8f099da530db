// The views, in the order of the menu. One that is `control` is for those who may run code in the job.
import Console from './console.jsx';
import Flame from './flame.jsx';
import Hang from './hang.jsx';
import Hosts from './hosts.jsx';
import Learning from './learning.jsx';
import Memory from './memory.jsx';
import Overhead from './overhead.jsx';
import Slow from './slow.jsx';
import SqlEditor from './sql.jsx';
import Step from './step.jsx';
import Time from './time.jsx';
import Well from './well.jsx';

export const VIEWS = [
  { name: 'well', key: '1', title: 'Is it well?', body: Well },
  { name: 'slow', key: '2', title: 'Which rank is slow?', body: Slow },
  { name: 'time', key: '3', title: 'Where does the time go?', body: Time },
  { name: 'hang', key: '4', title: 'Is it hung, and why?', body: Hang },
  { name: 'memory', key: '5', title: 'Memory', body: Memory },
  { name: 'step', key: '6', title: 'One step across ranks', body: Step },
  { name: 'flame', key: '7', title: 'Flame graph', body: Flame },
  { name: 'learning', key: '8', title: 'Learning', body: Learning },
  { name: 'hosts', key: '9', title: 'Hosts, GPUs, workers', body: Hosts },
  { name: 'overhead', key: '0', title: 'Overhead', body: Overhead },
  { name: 'sql', key: 's', title: 'SQL', body: SqlEditor },
  { name: 'console', key: 'c', title: 'Console', body: Console, control: true },
];
