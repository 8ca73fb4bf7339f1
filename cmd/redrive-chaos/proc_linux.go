package main

import "syscall"

// childAttributes keeps a child out of our process group, so that Ctrl-C reaches us alone, and has it
// killed when we are, whatever kills us.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
