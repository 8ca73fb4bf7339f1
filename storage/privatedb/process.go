//go:build unix

package privatedb

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
)

const (
	maxLogBytes  = 16 << 20 // a larger server.log makes room at the next start
	logTailBytes = 4 << 10
	logTailLines = 12
)

// process is one run of the server, from its start to its end.
type process struct {
	cmd     *exec.Cmd
	told    atomic.Bool   // we asked it to end
	done    chan struct{} // closed when it is gone and its lock is free
	err     error         // why it ended by itself; read it after done
	logPath string
	logFrom int64        // where its part of the log begins
	end     func() error // kills what a signal to the command does not reach
}

// startProcess starts the server and the goroutine that waits for its end and then calls release. The server
// inherits the lock, so that the folder stays locked as long as it lives, even if we are killed. End kills what a signal to the
// command would not reach.
func startProcess(cmd *exec.Cmd, logPath string, end func() error, release func(), lock *os.File) (*process, error) {
	if info, err := os.Stat(logPath); err == nil && info.Size() > maxLogBytes {
		if err := os.Rename(logPath, logPath+".old"); err != nil {
			return nil, err
		}
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the server has its own handle
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}

	p := &process{cmd: cmd, done: make(chan struct{}), logPath: logPath, logFrom: from, end: end}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.ExtraFiles = []*os.File{lock}
	p.cmd.SysProcAttr = childAttributes()

	started := make(chan error)
	go func() {
		// Linux ends the child when the thread that started it ends, not when the process does: this
		// thread has to stay until the server is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.wait(release)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) wait(release func()) {
	err := p.cmd.Wait()
	if !p.told.Load() {
		if err == nil {
			err = errors.New("exit status 0")
		}
		p.err = fmt.Errorf("the server ended by itself: %w\n%s", err, p.logTail())
	}
	release()
	close(p.done)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) finished() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal reaches a living process only, never another that got its number: os.Process sees to that.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

func (p *process) kill() {
	p.told.Store(true)
	_ = p.end() // an engine that does not answer has nothing running for long
	p.signal(syscall.SIGKILL)
	<-p.done
}

// logTail returns the last lines that this run wrote to its log.
func (p *process) logTail() string {
	log, err := os.Open(p.logPath)
	if err != nil {
		return ""
	}
	defer log.Close()
	from := p.logFrom
	if info, err := log.Stat(); err == nil {
		from = max(from, info.Size()-logTailBytes)
	}
	text, err := io.ReadAll(io.NewSectionReader(log, from, logTailBytes))
	if err != nil {
		return ""
	}
	return lastLines(text)
}

func lastLines(text []byte) string {
	lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-logTailLines):], "\n")
}
