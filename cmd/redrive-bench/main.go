// Command redrive-bench measures a Redrive broker: how fast it accepts and delivers, how quickly it answers
// with many dead jobs, what a counting cycle costs, and what purging and requeueing them does to everybody else.
//
// It starts `redrive serve` as a child process on a database of its own, speaks HTTP to it and is itself the
// consumer that the broker pushes to. Only dead jobs, backlogs and history come another way: five million dead jobs
// would take hours to fail over HTTP, so they are inserted by SQL, which tests on the way that deaths by a writer that
// knows nothing of the counting are counted.
//
// It checks as it measures: a message that was accepted and not delivered, or a count that is not the true
// one, is printed in capitals and makes the exit status 1. A fast wrong answer is not a result.
//
// Loader, consumer, broker and database usually share one machine here. The figures are therefore for
// comparing two versions, or two brokers, on the same machine, and not for sizing a deployment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

// errWrong is returned by run when everything was measured and some count was not the true one.
var errWrong = errors.New("a count was wrong")

// flags is the command line.
type flags struct {
	Redrive string `default:"./redrive" help:"The redrive binary to measure." placeholder:"PATH"`
	DSN     string `help:"Server to use (a go-sql-driver DSN); databases are created there and dropped in the end. Without it a private server is started." placeholder:"DSN"`
	Dir     string `help:"Where the temporary directory (private server, logs) is made; its disk is part of what is measured. Default: the system's." placeholder:"PATH"`

	Only   []string `default:"accept,e2e,idle,status,cycle,purge,requeue,pull,history" enum:"accept,e2e,idle,status,cycle,purge,requeue,pull,history" help:"Scenarios to run: ${enum}."`
	Size   string   `default:"full" enum:"small,full" help:"Defaults of the numbers below: small takes about a minute in all."`
	Repeat int      `default:"1" help:"Runs of each scenario; the table shows least, median and most."`
	JSON   string   `name:"json" help:"Also write the results to this file ('-': standard output instead of the table)." placeholder:"FILE"`

	Clients          int           `help:"Concurrent producers (full 64, small 64)."`
	Messages         int           `help:"Messages broadcast by e2e (full 20000, small 2000)."`
	PayloadBytes     int           `help:"Size of a message (1024)."`
	Consumers        int           `help:"Consumers of the second e2e run; the first has 1 (5)."`
	Duration         time.Duration `help:"How long accept and idle send (full 15s, small 3s)."`
	Rate             int           `help:"Messages a second sent by idle (50)."`
	Dead             int           `help:"Dead jobs of status, cycle and purge (full 100000, small 10000)."`
	NewDead          int           `help:"New deaths of cycle (full 10000, small 1000)."`
	DeadPayloadBytes int           `help:"Size of the messages of --dead, which nothing reads (128)."`
	Requeue          int           `help:"Dead jobs of requeue; their messages have --payload-bytes (full 200000, small 5000)."`
	Backlog          int           `help:"Jobs that wait for the pull consumer of pull; their messages have --payload-bytes (full 1000000, small 20000)."`
	History          int           `help:"Entries of history (full 1000000, small 20000)."`

	BufferPoolMiB int `name:"buffer-pool-mib" help:"Buffer pool of the private server, in MiB (full 1024, small 256)."`

	Env []string `help:"Another variable for the broker, NAME=VALUE; repeatable." placeholder:"NAME=VALUE" sep:"none"`
}

func main() {
	var f flags
	kong.Parse(&f,
		kong.Name("redrive-bench"),
		kong.Description("Measures a Redrive broker and checks its counts."),
		kong.UsageOnError(),
	)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, f, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "redrive-bench:", err)
		os.Exit(1)
	}
}

// run measures what f asks for, writes the table (or JSON) to out and progress to progress. It has stopped
// everything that it started, and dropped every database, by the time it returns.
func run(ctx context.Context, f flags, out, progress io.Writer) (err error) {
	set, err := f.settings()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(f.Dir, "redrive-bench-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	srv, err := openServer(ctx, f.DSN, dir, int64(set.BufferPoolMiB)<<20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()

	rep := newReport(set)
	if rep.Database, err = srv.Describe(ctx); err != nil {
		return err
	}
	b := &bench{
		set: set,
		rep: rep,
		log: progress,
		open: func(ctx context.Context, env map[string]string) (*world, error) {
			return openWorld(ctx, worldOptions{
				Server: srv, Binary: f.Redrive, Dir: dir, Env: mergeEnv(env, set.Env), Log: progress,
			})
		},
	}
	if err := b.run(ctx); err != nil {
		if len(rep.Figures)+len(rep.Checks) > 0 {
			// What was measured so far is still worth reading.
			rep.note("this run was not completed")
			err = errors.Join(err, rep.writeTable(out))
		}
		return err
	}
	return publish(rep, f.JSON, out)
}

// publish writes the report where the command line wants it, and turns wrong counts into errWrong.
func publish(rep *report, jsonPath string, out io.Writer) error {
	if jsonPath == "-" {
		if err := rep.writeJSON(out); err != nil {
			return err
		}
	} else if err := rep.writeTable(out); err != nil {
		return err
	}
	if jsonPath != "" && jsonPath != "-" {
		if err := rep.saveJSON(jsonPath); err != nil {
			return err
		}
	}
	if !rep.right() {
		return errWrong
	}
	return nil
}

// mergeEnv returns base with the NAME=VALUE pairs of extra on top.
func mergeEnv(base map[string]string, extra []string) map[string]string {
	env := make(map[string]string, len(base)+len(extra))
	maps.Copy(env, base)
	for _, pair := range extra {
		k, v, _ := strings.Cut(pair, "=")
		env[k] = v
	}
	return env
}
