// Package engine executes long-running platform tasks at least once, as RFC-72 says, and keeps what it says of engines.
//
// A deployment has the engines of its Context (publisher or managed-app, and what its configuration adds), each with a queue
// and operations that it records. A message in a queue is a job of the broker's: claimed, retried, dead and counted as any
// other. What the broker hands to Runtime.Execute goes this way:
//
//   - History: a message whose correlation id, instance and operation have succeeded is done.
//   - Singleton: one orchestration runs under "{engine}-{instance}". The message's own run is waited for; while another
//     one's is under way it waits for its turn, or is done without one where runs are interchangeable.
//   - Run: the orchestration looks at the history once more, takes the registry's lock where the engine changes
//     the registry, calls the engine's steps, writes the history and gives the lock back.
//   - A run that failed is tried again up to MaxRetryAttempts times; then the job is dead, with its dead letter.
//
// A process may die at any moment of this: what had begun goes on elsewhere (package durable), and the job, whose lease
// ends, finds the run or its history. Definition makes an engine of a function and its steps; Remote makes one of an HTTP
// endpoint; packages alerts, health and hmac are those that come with the broker.
//
// Besides, the package has the configuration of the tables that engines share, and their Retention. Rows are package
// storage's, requests are package web's.
package engine
