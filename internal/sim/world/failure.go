package world

import (
	"fmt"
	"slices"
	"strings"
)

// failure makes the next matching task or request fail.
type failure struct {
	match   string
	message string
	warns   bool // the task does its work and warns
}

// FailNext makes the next task of a type ("qmcreate"), or the next request ("POST /nodes/pve1/qemu", path
// without /api2/json, by prefix), fail with message and without any effect.
func (w *World) FailNext(match, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, failure{match: match, message: message})
}

// WarnNext makes the next task of a type do its work and end with a warning.
func (w *World) WarnNext(taskType, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, failure{match: taskType, message: message, warns: true})
}

// PendingFailures are those of FailNext, WarnNext and StopNextMove that have not happened yet.
func (w *World) PendingFailures() (pending []string) {
	w.mu.Look()
	defer w.mu.Unlock()
	for _, f := range w.failures {
		pending = append(pending, f.match+": "+f.message)
	}
	for _, stop := range w.moveStops {
		pending = append(pending, fmt.Sprintf("a move stops: %+v", stop))
	}
	return pending
}

// NoMoreFailures cancels failures of FailNext, WarnNext, StopNextMove and BusyStorage that
// have not happened yet.
func (w *World) NoMoreFailures() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures, w.moveStops = nil, nil
	for _, s := range w.storages {
		s.busy = 0
	}
}

// FailRequest consumes and returns the failure for this request; nil if there is none.
func (w *World) FailRequest(method, path string) error {
	w.mu.Look()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.failures, func(f failure) bool {
		return strings.Contains(f.match, " ") && strings.HasPrefix(method+" "+path, f.match)
	})
	if i < 0 {
		return nil
	}
	message := w.failures[i].message
	w.failures = slices.Delete(w.failures, i, i+1) // this slice is never handed out
	return failf("%s", message)
}

// takeFailure consumes and returns the failure for a task of that type; the zero failure
// if there is none.
func (w *World) takeFailure(taskType string) failure {
	i := slices.IndexFunc(w.failures, func(f failure) bool { return f.match == taskType })
	if i < 0 {
		return failure{}
	}
	f := w.failures[i]
	w.failures = slices.Delete(w.failures, i, i+1)
	return f
}

// FillStorage leaves no free space on a storage until FreeStorage.
func (w *World) FillStorage(id string) { w.setFull(id, true) }

// FreeStorage undoes FillStorage.
func (w *World) FreeStorage(id string) { w.setFull(id, false) }

func (w *World) setFull(id string, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.storages[id]; ok {
		s.full = full
	}
}
