//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startLimit = 60 * time.Second
	pollEvery  = 20 * time.Millisecond
)

// instance is one broker: a name and an address that stay, and the process that has them now.
type instance struct {
	n    int // from 1
	base string
	env  []string
	bin  string
	log  string
	rec  *recorder

	mu  sync.Mutex
	cur *process
}

// process is one life of an instance.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it is gone
	err  error         // of Wait; read it after done
}

func (p *process) gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// newInstances prepares n instances on one database. Their ports stay over restarts.
func newInstances(cfg config, dsn, dir, endpoint string, rec *recorder) ([]*instance, error) {
	bin, err := filepath.Abs(cfg.Redrive)
	if err != nil {
		return nil, err
	}
	var out []*instance
	for n := 1; n <= cfg.Instances; n++ {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		listen := fmt.Sprintf("127.0.0.1:%d", port)
		out = append(out, &instance{
			n: n, base: "http://" + listen, bin: bin, rec: rec, log: filepath.Join(dir, fmt.Sprintf("instance-%d.log", n)),
			env: append(inherited(),
				"REDRIVE_DATABASE_DSN="+dsn,
				"REDRIVE_DATA_DIR="+filepath.Join(dir, fmt.Sprintf("instance-%d", n)),
				"REDRIVE_HTTP_LISTEN="+listen,
				"REDRIVE_ADMIN_AUTH=open",
				"REDRIVE_AUTO_MIGRATE=true",
				"REDRIVE_BROKER_ALLOW_PRIVATE_DESTINATIONS=true",
				fmt.Sprintf("REDRIVE_BROKER_MAX_RETRY=%d", maxRetry),
				"REDRIVE_BROKER_RETRY_BACKOFF="+retryBackoff,
				"REDRIVE_BROKER_DELIVERY_TIMEOUT="+deliveryTimeout.String(),
				"REDRIVE_BROKER_RATIONAL_DELAY="+rationalDelay.String(),
				"REDRIVE_BROKER_MIN_SCHEDULE_DELAY="+minSchedule.String(),
				"REDRIVE_DLQ_SUMMARY_INTERVAL="+summaryInterval.String(),
				"REDRIVE_ENGINES="+engineSettings(endpoint),
				"REDRIVE_ENGINE_LEASE="+engineLease.String(),
				"REDRIVE_ALERT_CHANNELS="+channelForwards),
		})
	}
	return out, nil
}

// inherited is our environment without settings of Redrive: a run depends on its own alone.
func inherited() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "REDRIVE_") })
}

func (i *instance) process() *process {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.cur
}

// start begins a new life; it does not wait for it to be ready.
func (i *instance) start() (*process, error) {
	log, err := os.OpenFile(i.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own handle
	p := &process{cmd: exec.Command(i.bin, "serve"), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = i.env, log, log, childAttributes()
	started := make(chan error)
	go func() {
		// Linux ends such a child with the thread that started it, so the thread has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("instance %d: %w", i.n, err)
	}
	i.rec.edit(func(h *history) { h.Starts++ })
	i.mu.Lock()
	i.cur = p
	i.mu.Unlock()
	return p, nil
}

// signal reaches the living process only. Errors mean that it is gone, which others notice.
func (i *instance) signal(s syscall.Signal) {
	if p := i.process(); p != nil {
		_ = p.cmd.Process.Signal(s)
	}
}

// kill ends it as a crash would and returns when it is gone.
func (i *instance) kill() {
	if p := i.process(); p != nil {
		i.signal(syscall.SIGKILL)
		<-p.done
	}
}

// terminate asks it to stop and notes an incident unless it does so in time and with exit status 0.
func (i *instance) terminate() {
	p := i.process()
	begun := time.Now()
	i.signal(syscall.SIGTERM)
	late := time.NewTimer(stopLimit + 2*time.Second)
	defer late.Stop()
	select {
	case <-p.done:
		if p.err != nil {
			i.rec.incident("instance %d: %v after SIGTERM, %s later; its last words: %s", i.n, p.err, time.Since(begun).Round(time.Millisecond), i.lastWords())
		}
	case <-late.C:
		i.rec.incident("instance %d: still running %s after SIGTERM", i.n, time.Since(begun).Round(time.Millisecond))
		i.kill()
	}
}

// bringUp starts the instance and returns when it is ready, starting it again if it ends before: without a
// database it may. An end while mayEnd says no is an incident.
func (i *instance) bringUp(ctx context.Context, mayEnd func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for failures := 0; ; {
		p, err := i.start()
		if err != nil {
			return err
		}
		err = i.awaitReady(ctx, p)
		if err == nil || !p.gone() {
			return err
		}
		if !mayEnd() {
			failures++
			i.rec.incident("instance %d ended while starting: %v; its last words: %s", i.n, p.err, i.lastWords())
		}
		if failures == 3 || !hold(ctx, 500*time.Millisecond) {
			return fmt.Errorf("instance %d does not stay up: %w; its last words: %s", i.n, p.err, i.lastWords())
		}
	}
}

var errGone = errors.New("the process ended")

func (i *instance) awaitReady(ctx context.Context, p *process) error {
	var last error
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.base+"/readyz", nil)
		if err != nil {
			return err
		}
		if resp, err := probe.Do(req); err != nil {
			last = err
		} else {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			last = fmt.Errorf("/readyz answers %d: %s", resp.StatusCode, body)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("instance %d does not get ready: %w", i.n, last)
		case <-p.done:
			return errGone
		case <-time.After(pollEvery):
		}
	}
}

var probe = &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// lastWords returns the end of the instance's log, for reports.
func (i *instance) lastWords() string {
	text, err := os.ReadFile(i.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-3):], []byte(" | ")))
}

// hold waits for d, or until ctx ends: then it returns false.
func hold(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
