// Package durable runs orchestrations that survive the death of their process: a function that calls activities, sleeps,
// and goes on after a crash, in whichever process, where it was.
//
//	r := durable.New(db, durable.Options{})
//	r.RegisterActivity("probe", func(ctx context.Context, call durable.Call) (any, error) { ... })
//	r.RegisterOrchestration("health", func(c *durable.Context, input json.RawMessage) (any, error) {
//		return nil, c.Call("probe", input, nil, durable.Retry{Attempts: 3, Wait: time.Second})
//	})
//	go r.Run(ctx)
//	execution, err := r.Start(ctx, "health", "health-tenant-7", nil) // ErrAlreadyRunning: it runs, anywhere
//	result, err := r.Wait(ctx, execution)
//
// # How it works
//
// The runtime of github.com/cschleiden/go-workflows executes an orchestration in slices. A slice takes in what happened
// (the start, an activity's result, a timer), runs the function until it waits for something, and stores in one
// transaction what it decided. After a crash the function runs again from its beginning and gets the stored results, so
// it comes to where it was. Package workflowdb, ours, keeps all that in the database. An activity is executed under a
// lease that is extended while it runs; a process that dies leaves its leases to end, and others go on.
//
// # What it promises
//
//   - An instance id runs at most once at a time, over all processes: a unique key decides.
//   - A stored result stays: an activity that ended is never executed again.
//   - An activity that had not ended when its process died, or lost its lease, is executed again: at least once. Call.Key
//     is the same each time; an effect that is guarded by it takes place once.
//   - A slice or result of a process that lost its lease changes nothing.
//
// # What it asks
//
// Orchestrations must be deterministic: no clock but Context.Now, no randomness, no I/O and no goroutines, in deferred
// functions neither, and they must not block but by Context. Whatever has an effect is an activity. A change of the order
// of calls in a released orchestration fails those that are under way at that time: give the new one another name.
//
// Each orchestration is a queue of its own that only processes which registered it work on, so a process of an older
// release leaves new ones alone. Register an orchestration where all of its activities are registered.
//
// Nothing is removed by itself: RemoveEnded does, for whoever keeps the retention.
package durable
