package web

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// One is read at a time, in the order in which they were asked for, each at most once more.
func TestReadings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log []string
		active := 0
		r := newReadings(func(ctx context.Context, key string) (any, error) {
			if active++; active > 1 {
				t.Error("two at once")
			}
			defer func() { active-- }()
			log = append(log, key)
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(5 * time.Second):
			}
			if key == "bad" {
				return nil, errors.New("down")
			}
			return key + "!", nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() { r.run(ctx); close(done) }()
		for _, key := range []string{"a", "b", "bad"} {
			r.ask(key)
		}
		synctest.Wait()
		if a, b := r.get("a"), r.get("b"); !a.busy() || a.Began.IsZero() || !b.Waits || !b.Began.IsZero() {
			t.Errorf("a %+v, b %+v", a, b)
		}
		for range 9 {
			r.ask("a") // it changed while it was being read
			r.ask("b")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"a", "b", "bad", "a"}; !slices.Equal(log, want) {
			t.Errorf("read %v, want %v", log, want)
		}
		if a := r.get("a"); a.Value != "a!" || a.busy() || time.Since(a.At) != 40*time.Second {
			t.Errorf("a %+v", a)
		}
		if bad := r.get("bad"); bad.Value != nil || bad.Err == nil || time.Since(bad.Failed) != 45*time.Second {
			t.Errorf("bad %+v", bad)
		}
		if r.askIfOlder("a", time.Hour); r.get("a").busy() {
			t.Error("it is young")
		}
		r.askIfOlder("a", time.Second)
		synctest.Wait()
		cancel()
		<-done
		if a := r.get("a"); a.Value != "a!" || !errors.Is(a.Err, context.Canceled) {
			t.Errorf("cancelled: %+v", a)
		}
	})
}

// TestReadingsAfterSleep: what was read before this machine slept is as old as it is, and is read again.
func TestReadingsAfterSleep(t *testing.T) {
	t.Parallel()
	r := newReadings(nil)
	r.done("status", "old", nil)
	// The monotonic clock stands still while a machine sleeps: only the wall clock shows when that was.
	read := r.of("status")
	read.At = read.At.Add(-8 * time.Hour)
	(*struct { // time.Time
		wall uint64
		ext  time.Duration
		loc  *time.Location
	})(unsafe.Pointer(&read.At)).ext += 8 * time.Hour
	if time.Since(read.At) > time.Minute {
		t.Fatal("it did not sleep")
	}
	if got := age(read.At); got != "8h0m ago" {
		t.Errorf("read %s", got)
	}
	if r.askIfOlder("status", time.Minute); !r.get("status").busy() {
		t.Error("it is not read again")
	}
}
