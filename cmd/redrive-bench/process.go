package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	readyTimeout = time.Minute
	// stopTimeout is more than the 15 s that a broker may take to hand back what is in flight.
	stopTimeout = 20 * time.Second
)

// process is a running `redrive serve`.
type process struct {
	URL     string
	cmd     *exec.Cmd
	logPath string
	done    chan struct{} // closed when it has ended
	err     error         // of Wait; read after done
}

// startProcess starts binary on a free loopback port, with env on top of this process's environment (without
// its REDRIVE_ variables, which would change what is measured), and returns once /readyz answers 200. Its
// output goes to a file in dir.
func startProcess(ctx context.Context, binary, dir string, env map[string]string) (*process, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	out, err := os.CreateTemp(dir, "serve-*.log")
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the child has its own descriptor

	if binary, err = filepath.Abs(binary); err != nil {
		return nil, err
	}
	cmd := exec.Command(binary, "serve")
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(withoutRedrive(os.Environ()), "REDRIVE_HTTP_LISTEN="+address)
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	// A group of its own, so that Ctrl-C at a terminal reaches it only through Stop.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	p := &process{URL: "http://" + address, cmd: cmd, logPath: out.Name(), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	if err := p.awaitReady(ctx); err != nil {
		err = fmt.Errorf("redrive serve did not get ready: %w; it said last:\n%s", err, p.logTail())
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

func withoutRedrive(environ []string) []string {
	var kept []string
	for _, pair := range environ {
		if !strings.HasPrefix(pair, "REDRIVE_") {
			kept = append(kept, pair)
		}
	}
	return kept
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// awaitReady polls /readyz.
func (p *process) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("/readyz was not 200 within %v", readyTimeout))
	defer cancel()
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/readyz", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended: %w", exitError(p.err))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Stop ends the process, by force after stopTimeout. It fails when force was needed or the exit status was not 0.
func (p *process) Stop() error {
	select {
	case <-p.done:
		return nil // whoever watches done has told it
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop redrive serve: %w", err)
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("redrive serve did not stop cleanly: %w; it said last:\n%s", p.err, p.logTail())
		}
		return nil
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("redrive serve did not stop within %v and was killed", stopTimeout)
	}
}

// died describes an end that nobody asked for; call it after done.
func (p *process) died() error {
	return fmt.Errorf("redrive serve ended during the measurement: %w; it said last:\n%s", exitError(p.err), p.logTail())
}

func exitError(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// logTail returns the last 2 KiB that the process wrote.
func (p *process) logTail() string {
	f, err := os.Open(p.logPath)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	const most = 2048
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return strings.TrimSpace(string(b))
}

// ResetPeak makes PeakMemory count from now on. It fails where the kernel has no such thing.
func (p *process) ResetPeak() error {
	return os.WriteFile(p.procFile("clear_refs"), []byte("5"), 0)
}

// PeakMemory returns the most memory that was resident (VmHWM), in bytes.
func (p *process) PeakMemory() (int64, error) {
	status, err := os.ReadFile(p.procFile("status"))
	if err != nil {
		return 0, err
	}
	return parsePeak(string(status))
}

func (p *process) procFile(name string) string {
	return fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, name)
}

// parsePeak finds VmHWM in the text of /proc/PID/status.
func parsePeak(status string) (int64, error) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("VmHWM is %q: %w", strings.TrimSpace(rest), err)
			}
			return kib << 10, nil
		}
	}
	return 0, errors.New("no VmHWM in the process's status")
}
