package web

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/wait"
)

// readings are the latest results of what takes seconds to read. One is read at a time, so
// that many open pages ask the servers no more than one command does.
type readings struct {
	read func(ctx context.Context, key string) (any, error)
	wake chan struct{} // holds a value if the queue may not be empty

	mu    sync.Mutex
	known map[string]*reading
	queue []string // keys that wait; one that is being read is not among them
}

// reading is one of them.
type reading struct {
	Value  any       // the last that succeeded; nil: none
	At     time.Time // of Value
	Err    error     // why the last attempt failed; nil: it did not
	Failed time.Time // when that was
	Began  time.Time // of the attempt in progress; zero: there is none
	Waits  bool      // in the queue
}

// busy says whether a newer result is to be expected.
func (r reading) busy() bool { return r.Waits || !r.Began.IsZero() }

func newReadings(read func(context.Context, string) (any, error)) *readings {
	return &readings{read: read, wake: make(chan struct{}, 1), known: map[string]*reading{}}
}

// ask queues a reading, unless it waits already. One that is being read is read again:
// the user asks because something has changed.
func (r *readings) ask(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.queue, key) {
		return
	}
	r.queue = append(r.queue, key)
	r.of(key).Waits = true
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// askIfOlder queues a reading that is older, and not on its way.
func (r *readings) askIfOlder(key string, age time.Duration) {
	if now := r.get(key); !now.busy() && wait.Elapsed(now.At) > age && wait.Elapsed(now.Failed) > age {
		r.ask(key)
	}
}

// of returns the reading of a key. The caller holds the lock.
func (r *readings) of(key string) *reading {
	if r.known[key] == nil {
		r.known[key] = &reading{}
	}
	return r.known[key]
}

// get returns a copy, or an empty reading.
func (r *readings) get(key string) reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.known[key]; known != nil {
		return *known
	}
	return reading{}
}

// run reads what is asked for until ctx ends.
func (r *readings) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		for key := r.next(); key != "" && ctx.Err() == nil; key = r.next() {
			value, err := r.read(ctx, key)
			r.done(key, value, err)
		}
	}
}

// next takes the first key of the queue; "" if it is empty.
func (r *readings) next() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return ""
	}
	key := r.queue[0]
	r.queue = r.queue[1:]
	of := r.of(key)
	of.Waits, of.Began = false, time.Now()
	return key
}

func (r *readings) done(key string, value any, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.of(key)
	of.Began, of.Err = time.Time{}, err
	if err != nil {
		of.Failed = time.Now()
		return
	}
	of.Value, of.At = value, time.Now()
}
