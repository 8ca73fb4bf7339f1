package privatedb

import "syscall"

// childAttributes has the server killed when we are, whatever kills us, and keeps it out of our process
// group, so that Ctrl-C in a terminal reaches us alone and we stop it in order.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// endOrphan has nothing to do: a server whose owner is gone is already being killed.
func endOrphan(string) {}
