package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage/storagetest"
)

// actAsServe, set to anything, makes the test binary a `redrive serve` of a kind: "ready" behaves, "exit"
// ends at once, "deaf" never gets ready.
const actAsServe = "REDRIVE_BENCH_TEST_ACT"

func actServe() {
	how := os.Getenv(actAsServe)
	if len(os.Args) != 2 || os.Args[1] != "serve" || how == "exit" {
		fmt.Println("cannot start: REDRIVE_X is wrong")
		os.Exit(3)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	srv := &http.Server{Addr: os.Getenv("REDRIVE_HTTP_LISTEN"), ReadHeaderTimeout: time.Second}
	srv.Handler = (&fakeBroker{}).handler()
	if how == "deaf" {
		srv.Handler = http.NotFoundHandler()
	}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	_ = srv.ListenAndServe()
}

func startSelf(t *testing.T, ctx context.Context, how string) (*process, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startProcess(ctx, self, t.TempDir(), map[string]string{actAsServe: how})
}

func TestProcessStartsAndStops(t *testing.T) {
	t.Parallel()
	p, err := startSelf(t, t.Context(), "ready")
	if err != nil {
		t.Fatal(err)
	}
	if peak, err := p.PeakMemory(); err != nil || peak < 1<<20 {
		t.Errorf("peak memory is %d, error %v", peak, err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("a second Stop failed: %v", err)
	}
	if err := syscall.Kill(p.cmd.Process.Pid, 0); err == nil {
		t.Error("the process is still there")
	}
}

func TestAProcessThatEndsIsQuoted(t *testing.T) {
	t.Parallel()
	_, err := startSelf(t, t.Context(), "exit")
	if err == nil || !strings.Contains(err.Error(), "REDRIVE_X is wrong") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error is %v, without what the process said or its status", err)
	}
}

func TestAStartThatIsCancelledLeavesNoProcess(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	// Stop has waited for its end by the time startProcess returns; goleak would see the goroutine otherwise.
	if _, err := startSelf(t, ctx, "deaf"); err == nil {
		t.Error("a process that is never ready was taken for ready")
	}
}

func TestParsePeak(t *testing.T) {
	t.Parallel()
	got, err := parsePeak("VmPeak:\t  999 kB\nVmHWM:\t   766 kB\nVmRSS:\t 1 kB\n")
	if err != nil || got != 766<<10 {
		t.Errorf("peak is %d, error %v, want %d", got, err, 766<<10)
	}
	for _, bad := range []string{"", "VmHWM:\t many kB\n"} {
		if _, err := parsePeak(bad); err == nil {
			t.Errorf("%q was taken for a status", bad)
		}
	}
}

func TestTheCallersVariablesDoNotReachTheBroker(t *testing.T) {
	t.Parallel()
	got := withoutRedrive([]string{"PATH=/bin", "REDRIVE_LOG_LEVEL=debug", "HOME=/root"})
	if len(got) != 2 || got[0] != "PATH=/bin" || got[1] != "HOME=/root" {
		t.Errorf("what is passed on is %v", got)
	}
}

func TestRunFromFlagsToFile(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "bench.json")
	f := flags{
		Redrive: self, DSN: storagetest.DSN(t, storagetest.Empty()), Dir: dir, Size: "small", Repeat: 1, JSON: file,
		Only: []string{"e2e", "idle"}, Messages: 100, Duration: 200 * time.Millisecond, Env: []string{actAsServe + "=ready"},
	}
	var out strings.Builder
	if err := run(t.Context(), f, &out, io.Discard); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), "jobs end to end") || !strings.Contains(out.String(), "checks held") {
		t.Errorf("the table is:\n%s", out.String())
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the run left %v, error %v", left, err)
	}
}

func TestRunThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := flags{
		Redrive: filepath.Join(dir, "no-such-program"), DSN: storagetest.DSN(t, storagetest.Empty()), Dir: dir,
		Size: "small", Repeat: 1, Only: []string{"accept"},
	}
	if err := run(t.Context(), f, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("error is %v and does not name the program", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the run left %v, error %v", left, err)
	}
}
