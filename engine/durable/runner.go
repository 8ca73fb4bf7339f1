package durable

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/history"
	"github.com/cschleiden/go-workflows/client"
	"github.com/cschleiden/go-workflows/registry"
	"github.com/cschleiden/go-workflows/worker"
	"github.com/cschleiden/go-workflows/workflow"

	"github.com/redrive-mq/redrive/engine/durable/workflowdb"
)

var (
	// ErrAlreadyRunning says that an execution of this instance id has not ended, here or in another process.
	ErrAlreadyRunning = errors.New("the orchestration is running already")
	// ErrNotRegistered says that this Runner knows no orchestration of that name.
	ErrNotRegistered = errors.New("no such orchestration is registered")
	// ErrNotFound says that there is no such execution, or that it was removed; to Cancel also that it has ended.
	ErrNotFound = errors.New("no such execution of an orchestration")
)

// Options of a Runner.
type Options struct {
	// Idle is the longest time between two looks for work of other processes, and how late at most a timer of a
	// process that died fires; default 1 s. A look is one statement.
	Idle time.Duration
	// Lease is how long after its death a process's work is taken up by others; default 30 s. It is extended every
	// third of it. At least 1 s.
	Lease time.Duration
	// Activities is how many run at once in this process; default 16. Slices of orchestrations: half of it.
	Activities int
	// StopTimeout is how long Run lets activities end by themselves once its context ended, and again after it broke
	// them off; default 5 s.
	StopTimeout time.Duration
	// Log gets what an operator should know; default slog.Default().
	Log *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Idle <= 0 {
		o.Idle = time.Second
	}
	if o.Lease == 0 {
		o.Lease = 30 * time.Second
	}
	if o.Lease < time.Second {
		return o, fmt.Errorf("a lease of %s: must be at least 1s", o.Lease)
	}
	if o.Activities <= 0 {
		o.Activities = 16
	}
	if o.StopTimeout <= 0 {
		o.StopTimeout = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o, nil
}

// Runner starts orchestrations and, in Run, executes them. It is safe for use by several goroutines.
type Runner struct {
	o       Options
	backend *workflowdb.Backend
	client  *client.Client

	breakOff context.CancelFunc // ends the contexts of activities
	broken   context.Context

	mu             sync.Mutex
	running        bool
	orchestrations map[string]Orchestration
	activities     map[string]Activity
}

// New returns a Runner on the pool of a storage.Store (Store.DB), whose sessions it relies on. The database must have
// the schema; it is not touched yet.
func New(db *sql.DB, o Options) (*Runner, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	b := workflowdb.New(db, workflowdb.Options{Idle: o.Idle, Log: o.Log},
		backend.WithWorkflowLockTimeout(o.Lease), backend.WithActivityLockTimeout(o.Lease))
	r := &Runner{
		o: o, backend: b, client: client.New(b),
		orchestrations: map[string]Orchestration{}, activities: map[string]Activity{},
	}
	r.broken, r.breakOff = context.WithCancel(context.Background())
	return r, nil
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// RegisterOrchestration makes fn known under a name of 1 to 64 letters, digits, dots, dashes and underscores. It is an
// error after Run and for a name that is taken.
func (r *Runner) RegisterOrchestration(name string, fn Orchestration) error {
	return register(r, r.orchestrations, name, fn)
}

// RegisterActivity makes fn known under a name, as RegisterOrchestration does.
func (r *Runner) RegisterActivity(name string, fn Activity) error {
	return register(r, r.activities, name, fn)
}

func register[F any](r *Runner, known map[string]F, name string, fn F) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("the name %q: must be 1 to 64 letters, digits, dots, dashes and underscores", name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running {
		return fmt.Errorf("%q is registered too late: orchestrations are being executed", name)
	}
	if _, taken := known[name]; taken {
		return fmt.Errorf("%q is registered already", name)
	}
	known[name] = fn
	return nil
}

// Run executes orchestrations until ctx ends. Then it takes up no more, lets activities end within Options.StopTimeout,
// breaks off the others by their contexts, and hands back what was not done, without a failed attempt. An activity that
// does not heed its context either makes it an error; its lease then has to run out. Run can be called once.
func (r *Runner) Run(ctx context.Context) error {
	w, cache, err := r.worker()
	if err != nil {
		return err
	}
	defer r.breakOff()
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if err := w.Start(own); err != nil {
		cancel()
		return errors.Join(err, r.backend.Close())
	}
	<-ctx.Done()
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.WaitForCompletion() }()
	err = within(r.o.StopTimeout, ended)
	if errors.Is(err, errStillRunning) {
		r.backend.Drain()
		r.breakOff()
		err = within(r.o.StopTimeout, ended)
	}
	if errors.Is(err, errStillRunning) {
		return errors.Join(err, r.backend.Close())
	}
	cache.close()
	return errors.Join(err, r.backend.Close(), r.handBack())
}

// handBack gives back what was claimed and never begun.
func (r *Runner) handBack() error {
	ctx, cancel := context.WithTimeout(context.Background(), r.o.StopTimeout)
	defer cancel()
	return r.backend.HandBack(ctx)
}

var errStillRunning = errors.New("activities did not end when they were asked to")

func within(d time.Duration, ended <-chan error) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return errStillRunning
	}
}

// worker makes the runtime's worker with all that is registered.
func (r *Runner) worker() (*worker.Worker, *executorCache, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running {
		return nil, nil, errors.New("orchestrations are being executed already")
	}
	r.running = true
	var queues []workflow.Queue
	for name := range r.orchestrations {
		queues = append(queues, workflow.Queue(name))
	}
	cache := newExecutorCache(r.o.Lease / 2)
	options := &worker.Options{}
	options.WorkflowPollers, options.ActivityPollers = 1, 1
	// The backend waits for work by itself; this is the pause after a failed look.
	options.WorkflowPollingInterval, options.ActivityPollingInterval = time.Second, time.Second
	options.MaxParallelActivityTasks, options.MaxParallelWorkflowTasks = r.o.Activities, max(1, r.o.Activities/2)
	options.WorkflowHeartbeatInterval, options.ActivityHeartbeatInterval = r.o.Lease/3, r.o.Lease/3
	options.WorkflowExecutorCache = cache
	options.WorkflowQueues, options.ActivityQueues = queues, slices.Clone(queues)
	w := worker.New(checkpoints{r.backend, cache, r.o.Log, r.o.Lease, r.broken}, options)
	for name, fn := range r.orchestrations {
		if err := w.RegisterWorkflow(r.slices(fn), registry.WithName(name)); err != nil {
			return nil, nil, fmt.Errorf("the orchestration %q: %w", name, err)
		}
	}
	for name, fn := range r.activities {
		if err := w.RegisterActivity(r.executes(fn), registry.WithName(name)); err != nil {
			return nil, nil, fmt.Errorf("the activity %q: %w", name, err)
		}
	}
	return w, cache, nil
}

// Execution is one execution of an orchestration under an instance id.
type Execution struct {
	InstanceID  string
	ExecutionID string
}

func (e Execution) instance() *workflow.Instance {
	return &workflow.Instance{InstanceID: e.InstanceID, ExecutionID: e.ExecutionID}
}

const (
	// MaxInstanceID is the longest instance id, in bytes.
	MaxInstanceID = 255
	// MaxPayload is the longest input or result, in bytes of its JSON. A longer result is a failure for good.
	MaxPayload = 1 << 20
)

// Start starts an orchestration under an instance id of 1 to MaxInstanceID bytes, with an input that is encoded as JSON
// (at most MaxPayload bytes). While an execution of that id has not ended, the error is ErrAlreadyRunning; an id whose executions have ended can be
// started again. After another error it may have been started all the same, if the database's answer was lost.
func (r *Runner) Start(ctx context.Context, orchestration, instanceID string, input any) (Execution, error) {
	r.mu.Lock()
	_, known := r.orchestrations[orchestration]
	r.mu.Unlock()
	if !known {
		return Execution{}, fmt.Errorf("%q: %w", orchestration, ErrNotRegistered)
	}
	if n := len(instanceID); n < 1 || n > MaxInstanceID {
		return Execution{}, fmt.Errorf("an instance id of %d bytes: must be 1 to %d", n, MaxInstanceID)
	}
	data, err := encode("input of "+orchestration, input)
	if err != nil {
		return Execution{}, err
	}
	instance, err := r.client.CreateWorkflowInstance(ctx, client.WorkflowInstanceOptions{
		InstanceID: instanceID, Queue: workflow.Queue(orchestration),
	}, orchestration, data)
	if errors.Is(err, backend.ErrInstanceAlreadyExists) {
		return Execution{}, fmt.Errorf("%q: %w", instanceID, ErrAlreadyRunning)
	}
	if err != nil {
		return Execution{}, err
	}
	return Execution{InstanceID: instance.InstanceID, ExecutionID: instance.ExecutionID}, nil
}

// Running is an execution that has not ended.
type Running struct {
	Execution

	Age   time.Duration   // since its start, by the database's clock
	Input json.RawMessage // that it was started with
}

// Active returns the execution of an instance id that has not ended, or ErrNotFound.
func (r *Runner) Active(ctx context.Context, instanceID string) (Running, error) {
	running, err := r.backend.Active(ctx, instanceID)
	if err != nil {
		return Running{}, err
	}
	if running == nil {
		return Running{}, ErrNotFound
	}
	out := Running{Execution: executionOf(running.Instance), Age: running.Age}
	started, ok := running.Started.Attributes.(*history.ExecutionStartedAttributes)
	if ok && len(started.Inputs) > 0 {
		err = r.backend.Options().Converter.From(started.Inputs[0], &out.Input)
	}
	return out, err
}

// Age is how long ago an execution was started, by the database's clock. ErrNotFound.
func (r *Runner) Age(ctx context.Context, e Execution) (time.Duration, error) {
	age, err := r.backend.Age(ctx, e.instance())
	if errors.Is(err, backend.ErrInstanceNotFound) {
		err = ErrNotFound
	}
	return age, err
}

// Wait waits until an execution has ended, in whichever process, and returns its result as JSON. One that ended with an
// error is a *FailedError. It sees an end in this process at once, one elsewhere within Options.Idle.
func (r *Runner) Wait(ctx context.Context, e Execution) (json.RawMessage, error) {
	for {
		finished := r.backend.Finished()
		state, err := r.backend.GetWorkflowInstanceState(ctx, e.instance())
		if errors.Is(err, backend.ErrInstanceNotFound) {
			return nil, ErrNotFound
		}
		if err != nil {
			return nil, err
		}
		if state != active {
			return r.result(ctx, e)
		}
		timer := time.NewTimer(r.o.Idle)
		select {
		case <-finished:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
	}
}

func (r *Runner) result(ctx context.Context, e Execution) (json.RawMessage, error) {
	result, err := client.GetWorkflowResult[json.RawMessage](ctx, r.client, e.instance(), time.Second)
	if failure, ok := errors.AsType[*workflow.Error](err); ok {
		return nil, &FailedError{Message: failure.Message, Canceled: failure.Type == canceledType}
	}
	return result, err
}

// Cancel asks an execution to end: what it sleeps for and calls from now on answers ErrCanceled, except on a
// Context.Detached. A call under way is waited for. ErrNotFound: it has ended.
func (r *Runner) Cancel(ctx context.Context, e Execution) error {
	err := r.client.CancelWorkflowInstance(ctx, e.instance())
	if errors.Is(err, backend.ErrInstanceNotFound) {
		return ErrNotFound
	}
	return err
}

// removeBatch is how many executions RemoveEnded reads at a time.
const removeBatch = 100

// RemoveEnded removes executions that ended longer ago than age, with their results, each in a transaction of its own,
// and returns how many, also with an error.
func (r *Runner) RemoveEnded(ctx context.Context, age time.Duration) (int64, error) {
	return r.backend.RemoveEnded(ctx, age, removeBatch)
}
