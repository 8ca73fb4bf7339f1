package main

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// epoch is what instants are counted from: an instant is nanoseconds of the monotonic clock since the tool
// started, never 0 for something that happened. It fits an atomic, where a time.Time does not.
var epoch = time.Now().Add(-time.Second)

type instant = int64

func now() instant { return instant(time.Since(epoch)) }

// idDigits is the length of the number in a message id.
const idDigits = 9

// flow is a numbered set of messages: those that one load sends, or those of one seeding. A message's id is
// the flow's prefix and its number, so that a receipt is one array access and a thousand receipts make no garbage.
type flow struct {
	prefix   string
	sent     []instant // when the POST began; written by the sender of that number
	accepted []bool    // whether the broker answered 201; likewise
	next     atomic.Int64
}

// newFlow returns a flow of at most capacity messages.
func newFlow(name string, capacity int) *flow {
	return &flow{
		prefix:   fmt.Sprintf("%s-%x-", name, time.Now().UnixNano()),
		sent:     make([]instant, capacity),
		accepted: make([]bool, capacity),
	}
}

// id returns the id of message i.
func (f *flow) id(i int) string {
	n := strconv.Itoa(i)
	return f.prefix + "000000000"[:idDigits-len(n)] + n
}

// index is the inverse of id; ok is false for an id of anything else.
func (f *flow) index(id string) (i int, ok bool) {
	number, found := strings.CutPrefix(id, f.prefix)
	if !found || len(number) != idDigits {
		return 0, false
	}
	i, err := strconv.Atoi(number)
	return i, err == nil && i >= 0 && i < len(f.sent)
}

// take returns the number of the next message, or false when the flow is at its end.
func (f *flow) take() (int, bool) {
	i := int(f.next.Add(1) - 1)
	return i, i < len(f.sent)
}

// sentCount is how many numbers were taken.
func (f *flow) sentCount() int { return min(int(f.next.Load()), len(f.sent)) }

// acceptedCount is how many messages the broker accepted; call it after the load has ended.
func (f *flow) acceptedCount() int {
	n := 0
	for _, a := range f.accepted[:f.sentCount()] {
		if a {
			n++
		}
	}
	return n
}

// seeded marks every message as accepted: it was put into the database.
func (f *flow) seeded() {
	f.next.Store(int64(len(f.sent)))
	for i := range f.accepted {
		f.accepted[i] = true
	}
}
