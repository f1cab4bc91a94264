package world

import (
	"slices"
	"strings"
)

// failure is a switch that makes the next matching task or request fail.
type failure struct {
	match   string
	message string
	warns   bool // the task does its work all the same
}

// FailNext makes the next task of a type ("qmcreate"), or the next request
// ("POST /nodes/pve1/qemu", path without /api2/json, by prefix), fail with message. Nothing else of it happens.
func (w *World) FailNext(match, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, failure{match: match, message: message})
}

// WarnNext makes the next task of a type end with a warning when it has done its work.
func (w *World) WarnNext(taskType, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, failure{match: taskType, message: message, warns: true})
}

// NoMoreFailures takes back what FailNext, WarnNext, StopNextMove and BusyStorage
// have switched on and what has not happened yet.
func (w *World) NoMoreFailures() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures, w.moveStops = nil, nil
	for _, s := range w.storages {
		s.busy = 0
	}
}

// FailRequest is the error switched on for this request, once; nil if there is none.
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
	w.failures = slices.Delete(w.failures, i, i+1) // of which nobody is shown anything
	return failf("%s", message)
}

// takeFailure takes what is switched on for a task of that type; the zero failure
// if nothing is.
func (w *World) takeFailure(taskType string) failure {
	i := slices.IndexFunc(w.failures, func(f failure) bool { return f.match == taskType })
	if i < 0 {
		return failure{}
	}
	f := w.failures[i]
	w.failures = slices.Delete(w.failures, i, i+1)
	return f
}

// FillStorage leaves no room on a storage until FreeStorage.
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
