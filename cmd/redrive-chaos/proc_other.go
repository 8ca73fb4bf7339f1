//go:build unix && !linux

package main

import "syscall"

// childAttributes keeps a child out of our process group, so that Ctrl-C reaches us alone.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
