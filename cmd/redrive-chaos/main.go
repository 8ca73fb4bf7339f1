//go:build unix

// Command redrive-chaos runs a small cluster of Redrive under traffic while it breaks things, and then
// checks from the outside whether every promise held.
//
// It starts a database of its own, two instances of `redrive serve` on it, and consumers that it plays itself. Producers
// broadcast, pull consumers work, operators requeue and purge, others retry, resolve and expire dead letters one by one,
// pollers watch the counts; others give engines work, as messages, on demand and as alerts, which they do at an endpoint of
// the harness. Meanwhile instances are killed, stopped for longer than a lease and restarted, the database
// is killed, and consumers get slow, hang, flap and die. Every request, every delivery, every fault and every look into
// the database is written down. When all is healed and at rest, the written history is checked: nothing accepted is
// lost, no stale attempt won, every count is exact, and so on; see the files check_*.go.
//
// It knows Redrive by its HTTP interface, its process and its tables only; it imports nothing of the
// broker, so that a mistake there cannot hide itself here. It does not measure speed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

// config is the command line. The timings of the broker are fixed below: the checks depend on them.
type config struct {
	Redrive   string        `help:"The redrive binary to run." placeholder:"PATH"`
	Duration  time.Duration `help:"How long traffic and faults last; healing and checking come after it." default:"90s"`
	Seed      uint64        `help:"Seed of every random choice; 0: a new one, which is printed."`
	Instances int           `help:"How many instances of the broker." default:"2"`
	Rate      int           `help:"Broadcasts a second, all producers together." default:"60"`
	Flavour   string        `help:"Which server: mariadb, mysql, or empty for what is found on PATH." enum:"mariadb,mysql," default:""`
	TestDB    string        `name:"testdb" help:"An executable that starts servers: 'start FLAVOUR DIR PORT', 'kill DIR', 'restart DIR', 'stop DIR'." placeholder:"PATH"`
	History   string        `help:"Write the history to this file, as JSON lines. Empty: only when a check failed, beside the logs." placeholder:"FILE"`
	Check     string        `help:"Run nothing: check a history written before." placeholder:"FILE"`
	Settle    time.Duration `help:"How long after the traffic everything may take to come to rest." default:"60s"`
	Dir       string        `help:"Where the database and the logs go; kept afterwards. Empty: a temporary directory, kept only when a check failed." placeholder:"DIR"`
}

// The broker's settings in every run. Short, so that whole lives of jobs fit into a run.
const (
	maxRetry        = 3
	deliveryTimeout = 2 * time.Second
	rationalDelay   = time.Second
	leaseTime       = deliveryTimeout + rationalDelay
	retryBackoff    = "200ms,500ms,1s"
	summaryInterval = 2 * time.Second
	minSchedule     = time.Second
	stopLimit       = 15 * time.Second // after SIGTERM, by the broker's own promise
)

var errViolations = errors.New("checks failed")

func main() {
	var cfg config
	kong.Parse(&cfg, kong.Name("redrive-chaos"),
		kong.Description("Breaks a cluster of Redrive under traffic and checks that every promise held."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, cfg, os.Stdout)
	stop()
	switch {
	case errors.Is(err, errViolations):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "redrive-chaos:", err)
		os.Exit(2)
	}
}

// run does what the command line asks for and reports to out. It returns errViolations when a check
// failed, another error when the run itself could not be done. Whatever it started has ended on return.
func run(ctx context.Context, cfg config, out io.Writer) error {
	if cfg.Check != "" {
		h, err := readHistory(cfg.Check)
		if err != nil {
			return err
		}
		return report(out, h, checkAll(h), cfg)
	}
	if cfg.Redrive == "" {
		return errors.New("--redrive is needed: the path of the binary to run")
	}
	if cfg.Instances < 1 || cfg.Rate < 1 || cfg.Duration <= 0 {
		return errors.New("--instances, --rate and --duration must be above 0")
	}
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64N(1_000_000_000) + 1
	}
	// Nothing in a run waits without a bound of its own; this one is for what was overlooked.
	ctx, cancel := context.WithTimeout(ctx, cfg.Duration+2*cfg.Settle+3*time.Minute)
	defer cancel()
	fmt.Fprintf(out, "seed %d: %s of traffic on %d instances\n", cfg.Seed, cfg.Duration, cfg.Instances)
	h, dir, err := stage(ctx, cfg, out)
	if err != nil && ctx.Err() != nil && cfg.Dir == "" {
		return errors.Join(context.Cause(ctx), os.RemoveAll(dir)) // told to end: nobody wants the remains
	}
	if err != nil {
		return fmt.Errorf("seed %d: %w (files in %s)", cfg.Seed, err, dir)
	}
	results := checkAll(h)
	if cfg.History == "" && failed(results) {
		cfg.History = filepath.Join(dir, "history.jsonl")
	}
	if cfg.History != "" {
		if err := writeHistory(cfg.History, h); err != nil {
			return err
		}
	}
	err = report(out, h, results, cfg)
	if err == nil && cfg.Dir == "" {
		return os.RemoveAll(dir)
	}
	fmt.Fprintf(out, "database and logs are in %s\n", dir)
	return err
}
