"""Query workers: the processes in which statements run (`worker`, `zygote`), and the server's side of them (`pool`)."""
