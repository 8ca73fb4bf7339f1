//go:build unix

package privatedb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	lockPoll = 20 * time.Millisecond
	// lockGrace is how long a folder may stay locked by an owner that looks alive: one that is just ending.
	lockGrace = time.Second
	// orphanGrace is how long the server of an owner that is gone may take to end.
	orphanGrace = 30 * time.Second
)

// InUseError says that the folder belongs to another running server.
type InUseError struct {
	Dir string
	Pid int // the process that started that server, 0 if unknown
}

func (e *InUseError) Error() string {
	if e.Pid == 0 {
		return fmt.Sprintf("the private database in %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("the private database in %s is in use by process %d", e.Dir, e.Pid)
}

// lockDir takes the lock of dir. It is free again when the returned file and every copy of it that a
// child inherited are closed. A server that is just being ended with its owner is waited for.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("private database: %w", err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	begin := time.Now()
	for {
		err := tryLock(file)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			file.Close()
			return nil, fmt.Errorf("private database: locking %s: %w", dir, err)
		}
		owner := lockOwner(file)
		grace := lockGrace
		if owner != 0 && !alive(owner) {
			endOrphan(dir)
			grace = orphanGrace
		}
		if time.Since(begin) > grace {
			file.Close()
			return nil, &InUseError{Dir: dir, Pid: owner}
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("private database: waiting for the lock of %s: %w", dir, context.Cause(ctx))
		case <-tick.C:
		}
	}
	if err := writeOwner(file); err != nil {
		file.Close()
		return nil, fmt.Errorf("private database: locking %s: %w", dir, err)
	}
	return file, nil
}

func tryLock(file *os.File) error {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func writeOwner(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func lockOwner(file *os.File) int {
	text := make([]byte, 20)
	n, _ := file.ReadAt(text, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil || pid < 1 {
		return 0
	}
	return pid
}

// alive is true for any process with that number, also one that is not ours to signal.
func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// RemoveUnused deletes dir with all that is in it unless a server uses it or a process is about to start
// one: it was made or last locked less than age ago. For tests that clean up after runs that were killed.
func RemoveUnused(dir string, age time.Duration) error {
	path := filepath.Join(dir, "lock")
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		info, err = os.Stat(dir)
	}
	if err != nil || time.Since(info.ModTime()) < age {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := tryLock(file); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil
		}
		return err
	}
	return os.RemoveAll(dir)
}
