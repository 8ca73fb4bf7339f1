//go:build unix && !linux

package privatedb

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// childAttributes keeps the server out of our process group, so that Ctrl-C in a terminal reaches us alone
// and we stop it in order.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// endOrphan asks the server that a killed owner left in dir to stop: here nothing ends it with its owner.
// Call it only while dir is locked and its owner is gone: then the server holds the lock, so it lives and its
// number is still its own.
func endOrphan(dir string) {
	text, err := os.ReadFile(filepath.Join(dir, pidName))
	if err != nil {
		return
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
}
