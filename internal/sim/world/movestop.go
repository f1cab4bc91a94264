package world

// MoveStage is a point inside the worker of move_disk, between two of the three
// things that it does.
type MoveStage int

const (
	// AfterRename is when the volume has its new name and no configuration knows that.
	AfterRename MoveStage = iota + 1
	// AfterSource is when the source's configuration is written and the target's is not.
	AfterSource
)

type moveStop struct {
	after MoveStage
	crash bool
}

// StopNextMove kills the worker of the next move_disk at that point, as kill -9
// does; with crash the whole host goes down with it.
func (w *World) StopNextMove(after MoveStage, crash bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moveStops = append(w.moveStops, moveStop{after: after, crash: crash})
}

// stopsMove says that a worker ends here; mu must be held.
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
