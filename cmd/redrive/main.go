// Command redrive is the broker and what goes with it: `redrive serve` runs an instance, `redrive dev` one with a demo on
// a machine where nothing is configured, and the other commands look after the schema, the configuration and dead letters.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/redrive-mq/redrive/internal/app"
)

// What a process ends with.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // the command line or a setting is wrong
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	code := run(ctx, os.Args[1:], process{out: os.Stdout, err: os.Stderr, lookupEnv: os.LookupEnv, environ: os.Environ()})
	stop()
	os.Exit(code)
}

// process is what a command has of the process that it runs in.
type process struct {
	out, err  io.Writer
	lookupEnv func(string) (string, bool)
	environ   []string // name=value
}

// cli is the grammar of the command line. Dev sets other defaults than the rest, whose are those of defaults: fast
// retries, so that dead letters show soon, and everything open.
type cli struct {
	Serve     serveCmd     `cmd:"" help:"Run an instance."`
	Dev       devCmd       `kong:"cmd,help='Run an instance with a private database and a demo, for this machine only.',set='http_listen=127.0.0.1:8080',set='admin_auth=open',set='allow_private=true',set='max_retry=2',set='retry_backoff=1s,2s',set='summary_interval=10s',set='prune_days=1',set='log_level=error',set='log_format=text'"`
	Migrate   migrateCmd   `cmd:"" help:"Look at the database's schema or change it."`
	Check     checkCmd     `cmd:"" help:"Ask whether an instance is ready, or whether the settings are fine."`
	DLQ       dlqCmd       `cmd:"" name:"dlq" help:"Look at dead letters and move them, straight in the database."`
	Retention retentionCmd `cmd:"" help:"Remove resolved and expired dead letters and history that are past their retention."`
	Version   versionCmd   `cmd:"" help:"Say what program this is."`
}

// settings is what every command that needs any takes.
type settings struct {
	app.Config
	ConfigFile string `name:"config" group:"Start" placeholder:"FILE" help:"YAML file with settings, by the names of the flags. A flag wins over the environment, that over the file."`
}

// defaults are those of `serve`, and so of all commands but dev.
func defaults() kong.Vars {
	return kong.Vars{
		"http_listen": ":8080", "admin_auth": app.AdminToken, "allow_private": "false",
		"max_retry": "5", "retry_backoff": "5s,30s,60s,120s,180s", "summary_interval": "10m", "log_level": "info", "log_format": "json", "prune_days": "0",
	}
}

// run is main without what belongs to the process. It returns the exit status.
func run(ctx context.Context, args []string, p process) (code int) {
	exited := false
	parser, err := kong.New(&cli{},
		kong.Name("redrive"),
		kong.Description("A job broker on MySQL whose dead letters are counted exactly and can be brought back."),
		kong.Writers(p.out, p.err),
		kong.Exit(func(status int) { code, exited = status, true }), // after --help
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.ValueFormatter(helpWithEnv),
		defaults(),
		settingMappers(),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(p),
	)
	if err != nil {
		fmt.Fprintf(p.err, "redrive: %v\n", err)
		return exitFailed
	}
	resolver := &settingResolver{model: parser.Model, lookupEnv: p.lookupEnv}
	if err := kong.Resolvers(resolver).Apply(parser); err != nil {
		fmt.Fprintf(p.err, "redrive: %v\n", err)
		return exitFailed
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if exited {
		return code
	}
	if err != nil {
		fmt.Fprintf(p.err, "redrive: %s\n", refusal(err))
		return exitUsage
	}
	return report(p, command.Run())
}

// report prints an error that ends a command, once, on stderr.
func report(p process, err error) int {
	var wrong *app.SettingError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errQuiet):
		return exitFailed
	case errors.As(err, &wrong):
		fmt.Fprintf(p.err, "redrive: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(p.err, "redrive: %v\n", err)
	return exitFailed
}

// errQuiet ends a command that has said everything with a status that is not 0.
var errQuiet = errors.New("the command failed")
