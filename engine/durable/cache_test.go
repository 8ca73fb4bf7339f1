package durable

import (
	"context"
	"testing"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/core"
	"github.com/cschleiden/go-workflows/workflow/executor"
)

// closing is an executor that says when it is closed.
type closing chan bool

func (c closing) Close() { close(c) }

func (c closing) ExecuteTask(context.Context, *backend.WorkflowTask) (*executor.ExecutionResult, error) {
	return nil, nil
}

func (c closing) closed() bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func newTask() *core.WorkflowInstance { return core.NewWorkflowInstance("instance", "execution") }

// begin does what the runtime does for a task: it gets an executor, else makes one, which is offered here.
func begin(t *testing.T, c *executorCache, task *core.WorkflowInstance, made closing) (got closing, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	found, ok, err := c.Get(ctx, task)
	got, known := found.(closing)
	if ok != known {
		t.Fatalf("got %v, %t", found, ok)
	}
	if !ok {
		got = made
	}
	if err != nil || c.Store(ctx, task, got) != nil {
		t.Fatal(err)
	}
	return got, cancel
}

func TestCacheLendsToOne(t *testing.T) {
	t.Parallel()
	c := newExecutorCache(time.Hour)
	first, second := make(closing), make(closing)
	early, task := newTask(), newTask()
	_, endEarly := begin(t, c, early, first)
	got, end := begin(t, c, task, second)
	if got == first {
		t.Fatal("an executor was lent twice")
	}
	c.drop(0)
	if first.closed() || second.closed() {
		t.Error("an executor was closed while it was lent")
	}
	endEarly() // its slice was not stored
	<-first
	c.keep(task)
	end()
	c.lent.Wait()
	if second.closed() {
		t.Error("an executor was closed whose slice was stored")
	}
	last := newTask()
	if got, end = begin(t, c, last, make(closing)); got != second {
		t.Error("an executor whose slice was stored was not kept")
	}
	end()
	<-second // not stored
	if len(c.entries) != 0 {
		t.Errorf("%d executors are kept", len(c.entries))
	}
}

// An executor that came back between a look for it and the storing of another one gives way.
func TestCacheSuperseded(t *testing.T) {
	t.Parallel()
	c := newExecutorCache(time.Hour)
	first, second := make(closing), make(closing)
	early, task := newTask(), newTask()
	begin(t, c, early, first)
	if _, ok, _ := c.Get(t.Context(), task); ok {
		t.Fatal("an executor was lent twice")
	}
	c.keep(early)
	if err := c.Store(t.Context(), task, second); err != nil {
		t.Fatal(err)
	}
	<-first
	c.keep(task)
	if got, _ := begin(t, c, newTask(), nil); got != second {
		t.Error("the later executor is not the one that is kept")
	}
}

func TestCacheDropsUnused(t *testing.T) {
	t.Parallel()
	c := newExecutorCache(10 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go c.StartEviction(ctx)
	e, task := make(closing), newTask()
	_, end := begin(t, c, task, e)
	c.keep(task)
	end()
	<-e
}
