package world

// MoveStage is a point inside the worker of move_disk, between two of its three actions.
type MoveStage int

const (
	// AfterRename is after the rename, when no configuration has the new name yet.
	AfterRename MoveStage = iota + 1
	// AfterSource is after the source's configuration was written, before the target's.
	AfterSource
)

type moveStop struct {
	after MoveStage
	crash bool
}

// StopNextMove kills the worker of the next move_disk at that point, like kill -9; with
// crash the whole host crashes.
func (w *World) StopNextMove(after MoveStage, crash bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moveStops = append(w.moveStops, moveStop{after: after, crash: crash})
}

// stopsMove says whether a worker ends here; mu must be held.
func (w *World) stopsMove(t *task, at MoveStage) bool {
	if len(w.moveStops) == 0 || w.moveStops[0].after != at {
		return false
	}
	crash := w.moveStops[0].crash
	w.moveStops = w.moveStops[1:]
	t.kill()
	if crash {
		for _, p := range w.cutPower(t.Host) {
			w.spawn(p.kill)
		}
	}
	return true
}
