//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage/storagetest"
)

const (
	firstDeadWithin = 30 * time.Second // the promise
	stopWithin      = 25 * time.Second
)

// child is redrive as a process of its own.
type child struct {
	cmd   *exec.Cmd
	lines chan string // of its stdout; closed at its end
	done  chan error
}

func spawn(t *testing.T, env []string, args ...string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0], args...), lines: make(chan string, 1000), done: make(chan error, 1)}
	c.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "REDRIVE_") || strings.HasPrefix(kv, "PORT=") }), asMain+"=1")
	c.cmd.Env = append(c.cmd.Env, env...)
	c.cmd.Stderr = t.Output()
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			c.lines <- scanner.Text()
		}
		close(c.lines)
		c.done <- c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		for range c.lines { // until its end
		}
		<-c.done
	})
	return c
}

// expect reads stdout up to a line that holds text, and returns it with the lines before it.
func (c *child) expect(t *testing.T, text string, within time.Duration) []string {
	t.Helper()
	deadline := time.After(within)
	var seen []string
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				t.Fatalf("it ended without %q:\n%s", text, strings.Join(seen, "\n"))
			}
			if seen = append(seen, line); strings.Contains(line, text) {
				return seen
			}
		case <-deadline:
			t.Fatalf("no %q within %s:\n%s", text, within, strings.Join(seen, "\n"))
		}
	}
}

// interrupt is Ctrl-C. It fails unless the process ends in time with status 0.
func (c *child) interrupt(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(stopWithin)
	for {
		select {
		case <-c.lines: // it must not block on what nobody reads
		case err := <-c.done:
			if err != nil {
				t.Errorf("it ended with %v", err)
			}
			return
		case <-deadline:
			t.Fatal("it did not stop")
		}
	}
}

// descendants of a process, which exist now.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(text)) {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			found = append(append(found, n), descendants(t, n)...)
		}
	}
	return found
}

// `redrive dev` counts dead letters within 30 s of its first start, its printed lines work, Ctrl-C leaves no process
// behind, and a second start finds its data.
func TestDev(t *testing.T) {
	t.Parallel()
	env := []string{"REDRIVE_DATA_DIR=" + t.TempDir(), "REDRIVE_HTTP_LISTEN=127.0.0.1:0"}
	dev := spawn(t, env, "dev")
	begin := time.Now()
	lines := dev.expect(t, "First dead letters counted", firstDeadWithin)
	t.Logf("dead letters after %s", time.Since(begin))
	base := apiOf(t, lines)
	if n := countDead(t, base); n == 0 {
		t.Error("/dlq-status counts none")
	}
	tryLines(t, dev.expect(t, "/consumer/legacy-erp/dlq", time.Second))

	children := descendants(t, dev.cmd.Process.Pid)
	if len(children) == 0 {
		t.Error("it has no database process?")
	}
	dev.interrupt(t)
	for _, pid := range children {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is still there", pid)
		}
	}

	again := spawn(t, env, "dev")
	base = apiOf(t, again.expect(t, "Waiting for dead letters", firstDeadWithin))
	if n := countDead(t, base); n == 0 {
		t.Error("the second start does not find the dead letters of the first")
	}
	again.interrupt(t)
}

// With a DSN, dev works on that database if it is empty or its own, and leaves those of others alone.
func TestDevOnAGivenDatabase(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]bool{"empty": false, "in use": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := storagetest.DSN(t, storagetest.Empty())
			env := []string{"REDRIVE_DATABASE_DSN=" + dsn, "REDRIVE_DATA_DIR=" + t.TempDir(), "REDRIVE_HTTP_LISTEN=127.0.0.1:0"}
			if !others {
				dev := spawn(t, env, "dev")
				dev.expect(t, "Waiting for dead letters", firstDeadWithin)
				dev.interrupt(t)
				return
			}
			if got := redrive(t, map[string]string{"REDRIVE_DATABASE_DSN": dsn}, "migrate", "up"); got.code != exitOK {
				t.Fatal(got.err)
			}
			seeded(t, dsn)
			got := redrive(t, map[string]string{"REDRIVE_DATABASE_DSN": dsn, "REDRIVE_HTTP_LISTEN": "127.0.0.1:0"}, "dev")
			if got.code == exitOK || !strings.Contains(got.err, "REDRIVE_DATABASE_DSN") || !strings.Contains(got.err, "1 channels of somebody else") {
				t.Errorf("exit status %d, %q", got.code, got.err)
			}
		})
	}
}

// apiOf finds the base URL in the banner.
func apiOf(t *testing.T, lines []string) string {
	t.Helper()
	for _, line := range lines {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "API" {
			return strings.TrimSuffix(fields[1], "/")
		}
	}
	t.Fatalf("no URL in the banner:\n%s", strings.Join(lines, "\n"))
	return ""
}

func countDead(t *testing.T, base string) int {
	t.Helper()
	resp, err := http.Get(base + "/dlq-status")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("/dlq-status: %d, %v", resp.StatusCode, err)
	}
	return strings.Count(string(text), `"deadCount":`) - strings.Count(string(text), `"deadCount":0,`)
}

// tryLines does what the printed command lines do.
func tryLines(t *testing.T, lines []string) {
	t.Helper()
	tried := 0
	for _, line := range lines {
		if !strings.HasPrefix(line, "curl ") {
			continue
		}
		tried++
		if err := curl(t.Context(), line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if tried != 5 {
		t.Errorf("%d lines to try, not 5:\n%s", tried, strings.Join(lines, "\n"))
	}
}

// curl does what a curl command line would, of the few options that are printed: a machine that runs tests may have
// none.
func curl(ctx context.Context, line string) error {
	method, target, header := http.MethodGet, "", http.Header{}
	words := shellWords(line)
	for i := 1; i < len(words); i++ {
		switch words[i] {
		case "-s":
		case "-w":
			i++
		case "-X":
			i++
			method = words[i]
		case "-H":
			i++
			name, value, _ := strings.Cut(words[i], ": ")
			header.Set(name, value)
		default:
			if target != "" || !strings.HasPrefix(words[i], "http://") {
				return fmt.Errorf("what is %q?", words[i])
			}
			target = words[i]
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, target, http.NoBody)
	if err != nil {
		return err
	}
	req.Header = header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= http.StatusBadRequest {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return nil
}

// shellWords splits a line at its spaces, but for those between single quotes.
func shellWords(line string) []string {
	var words []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}

// A wrong value ends the process with status 2 and one line; SIGTERM ends serve with status 0.
func TestServeProcess(t *testing.T) {
	t.Parallel()
	wrong := exec.Command(os.Args[0], "serve")
	wrong.Env = []string{asMain + "=1", "REDRIVE_ADMIN_AUTH=nobody"}
	out, err := wrong.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitUsage || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%v: %s", err, out)
	}

	serve := spawn(t, []string{"REDRIVE_DATABASE_DSN=u:p@tcp(127.0.0.1:1)/d", "REDRIVE_ADMIN_AUTH=open", "REDRIVE_HTTP_LISTEN=127.0.0.1:0"}, "serve")
	// It waits for its database. Its log is on stderr; that it listens shows in its sockets.
	deadline := time.After(firstDeadWithin)
	for !listens(serve.cmd.Process.Pid) {
		select {
		case <-deadline:
			t.Fatal("it does not listen")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := serve.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-serve.done:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(stopWithin):
		t.Error("it did not stop")
	}
}

// A taken port ends the process with status 1 and a line that names the setting and the address: it does not wait, for the
// database or for the port, and does not go on without it.
func TestServeOnATakenPort(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), stopWithin)
	defer cancel()
	serve := exec.CommandContext(ctx, os.Args[0], "serve")
	address := taken.Addr().String()
	serve.Env = []string{asMain + "=1", "REDRIVE_DATABASE_DSN=u:p@tcp(127.0.0.1:1)/d", "REDRIVE_ADMIN_AUTH=open", "REDRIVE_HTTP_LISTEN=" + address}
	out, err := serve.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFailed || !strings.Contains(string(out), "REDRIVE_HTTP_LISTEN") || !strings.Contains(string(out), address) {
		t.Errorf("%v: %s", err, out)
	}
}

// listens tells whether a process has a listening TCP socket.
func listens(pid int) bool {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return false
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil {
			continue
		}
		inode, ok := strings.CutPrefix(target, "socket:[")
		if !ok {
			continue
		}
		inode = strings.TrimSuffix(inode, "]")
		for line := range strings.Lines(string(table)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && f[9] == inode {
				return true
			}
		}
	}
	return false
}
