// Package watch draws the active run of a cluster, for recast status --watch. It draws the run from its log if the
// run was started on this machine, else from what Proxmox knows about the run. [Watcher] only looks.
package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

const (
	watchHere = 500 * time.Millisecond // between two reads of a log on this machine
	watchPace = 2 * time.Second        // for each request to Proxmox
	watchBeat = 10 * time.Second       // between two reads of the claim
)

// Watcher draws the active run.
type Watcher struct {
	p       pipeline.Project
	px      *pipeline.Watched
	look    func(context.Context) (pipeline.StatusResult, error)
	view    *live.View
	stopped func(claim.Holder) bool // StatusSources.Suspended
	now     time.Time               // of the current tick

	here     past.Running // zero: no run was started here, or it has ended
	ended    string       // how the last run that was started here ended
	follow   *live.Follower
	due      time.Time // when Proxmox may be asked again
	asked    time.Time // when Proxmox was asked last
	text     []string  // the status that Proxmox gave
	beat     claim.State
	beaten   time.Time // when the claim's counter last changed
	checked  time.Time // when the claim was read last
	found    bool      // the claim exists
	claimErr error     // why the claim could not be read
}

// New returns a watcher that draws on view. Its reads of Proxmox are spread out in time.
func New(p pipeline.Project, px pipeline.Listing, src pipeline.StatusSources, view *live.View) *Watcher {
	w := &Watcher{p: p, px: p.Watched(px), view: view, stopped: src.Suspended}
	src.Proxmox = w.px
	w.look = func(ctx context.Context) (pipeline.StatusResult, error) { return pipeline.Status(ctx, p, src) }
	return w
}

// Until watches until the run ends, and returns the result; "" if the user leaves before that.
func (w *Watcher) Until(ctx context.Context) (last string, err error) {
	tick := time.NewTicker(watchHere)
	defer tick.Stop()
	for {
		w.now = time.Now()
		if last, err := w.once(ctx); last != "" || err != nil {
			if ctx.Err() != nil {
				return w.gone(), nil // the user pressed Ctrl-C
			}
			return last, err
		}
		select {
		case <-ctx.Done():
			return w.gone(), nil
		case <-tick.C:
		}
	}
}

func (w *Watcher) once(ctx context.Context) (last string, err error) {
	running, here, err := w.p.Runs().Running()
	if err != nil {
		return "", err
	}
	if here && w.passed(running) {
		if w.here.ID != "" { // this turns away from it, to the active one
			w.here, w.due = past.Running{}, w.now
			w.view.Begin("recast status --watch", w.now)
		}
		running, here = past.Running{}, false
	}
	if w.here.ID != "" && running.ID != w.here.ID {
		if err := w.over(); err != nil {
			return "", err
		}
	}
	switch {
	case !here && w.ended != "":
		return w.afterwards(ctx)
	case !here:
		return w.elsewhere(ctx)
	}
	if running.ID != w.here.ID || (running.Plan != nil && w.here.Plan == nil) {
		w.begin(running)
	}
	if err := w.view.Follow(w.follow); err != nil {
		return "", err
	}
	w.pulse(ctx)
	return "", nil
}

// passed reports whether the run that was started here is over although its journal does not say so: the run may have
// been killed here and finished elsewhere. Another run has then taken the claim since the log was written last.
func (w *Watcher) passed(r past.Running) bool {
	if !w.found || w.beat.Run == r.ID {
		return false
	}
	written := r.Started
	if info, err := os.Stat(filepath.Join(r.Dir, story.LogName)); err == nil {
		written = info.ModTime()
	}
	return written.Before(w.beat.Since)
}

func (w *Watcher) over() error {
	outcome, err := w.p.Runs().Outcome(w.here.ID)
	w.ended = fmt.Sprintf("run %s: %s", w.here.ID, outcome)
	err = errors.Join(err, w.view.Follow(w.follow)) // the last lines of the log
	w.here, w.due = past.Running{}, w.now
	return err
}

func (w *Watcher) gone() string {
	if w.here.ID != "" {
		return ""
	}
	return w.ended
}

// afterwards waits until nobody holds the claim: a roll that has finished an earlier run starts its own run.
func (w *Watcher) afterwards(ctx context.Context) (last string, err error) {
	if !w.isDue() {
		return "", nil
	}
	if _, found, err := w.p.Claim(ctx, w.px); !found || err != nil {
		return w.ended, err
	}
	w.pace(watchPace)
	return "", nil
}

func (w *Watcher) begin(r past.Running) {
	w.here = r
	w.follow = &live.Follower{Path: filepath.Join(r.Dir, story.LogName), Older: filepath.Join(r.Dir, story.OlderLogName)}
	w.view.Begin("recast run "+r.ID, r.Started)
	if r.Plan != nil {
		w.view.Plan(*r.Plan)
	}
}

func (w *Watcher) pulse(ctx context.Context) {
	if !w.isDue() {
		return
	}
	now, found, err := w.p.Claim(ctx, w.px)
	if ctx.Err() != nil {
		return
	}
	w.heart(now, found, err)
	w.view.Say(w.heartbeat())
	w.pace(watchBeat)
}

// heart stores whether the claim's counter changed. The time in which the claim can't be read does not count as a
// standstill.
func (w *Watcher) heart(now claim.State, found bool, err error) {
	if w.claimErr = err; err != nil {
		w.beaten, w.checked = w.now, w.now
		return
	}
	if found && (!w.found || now.Run != w.beat.Run || now.Beat != w.beat.Beat) {
		w.beaten = w.now
	}
	w.beat, w.found, w.checked = now, found, w.now
}

func (w *Watcher) stood() time.Duration { return w.checked.Sub(w.beaten).Round(time.Second) }

func (w *Watcher) silent() time.Duration {
	written := w.here.Started
	if w.follow.Written.After(written) {
		written = w.follow.Written
	}
	return w.now.Sub(written).Round(time.Second)
}

// suspended returns past.Run.Suspended of the active run, whether this machine has its journal or only its claim.
func (w *Watcher) suspended() string {
	if w.here.ID != "" {
		return w.p.Runs().Read(w.here.ID, past.Options{Suspended: w.stopped}).Suspended()
	}
	if by := w.beat.Holder; w.found && w.stopped != nil && w.stopped(by) {
		return fmt.Sprintf("that run (%s) is suspended: %s", by, by.GoesOn())
	}
	return ""
}

func (w *Watcher) heartbeat() string {
	suspended := w.suspended()
	switch {
	case suspended != "":
		return suspended
	case w.claimErr != nil:
		return "whether that run is still alive is unknown: " + w.claimErr.Error()
	case !w.found && w.silent() < claim.Watch:
		return fmt.Sprintf("that run logged something %s ago; nobody holds the claim in Proxmox, so it may be in Kubernetes", w.silent())
	case !w.found:
		return fmt.Sprintf("nobody holds the claim in Proxmox, and nothing was logged for %s: that run was killed or hangs; recast status says whether another machine finished it", w.silent())
	case w.stood() >= claim.Watch:
		return fmt.Sprintf("%s holds the claim, and its heartbeat has stood still for %s: that run has died, is suspended on another machine, or does not reach Proxmox; recast roll takes over", w.beat.Holder, w.stood())
	}
	return fmt.Sprintf("%s holds the claim, heartbeat %d", w.beat.Holder, w.beat.Beat)
}

// Leaving returns the text to print when the user leaves; "" if no run is active.
func (w *Watcher) Leaving() string {
	run := cmp.Or(w.here.ID, w.beat.Run)
	logs := w.here.ID != "" && w.silent() < claim.Watch
	beats := w.found && w.claimErr == nil && w.stood() < claim.Watch
	switch {
	case run == "":
		return ""
	case (logs || beats) && w.suspended() == "":
		return "run " + run + " continues"
	}
	return "run " + run + ": " + w.heartbeat()
}

func (w *Watcher) elsewhere(ctx context.Context) (last string, err error) {
	if w.isDue() {
		first := w.asked.IsZero()
		res, err := w.look(ctx)
		switch {
		case err != nil && (first || ctx.Err() != nil):
			return "", err
		case err != nil:
			w.heart(claim.State{}, false, err)
			w.view.Say("the status can't be read: " + err.Error())
			w.pace(watchBeat)
			return "", nil
		case first:
			w.px.Requests() // the requests of the first read do not count, as in recast status
		}
		res.Kept = nil // a run does not change the kept disks
		var text strings.Builder
		if err := ui.WriteStatus(&text, "text", res); err != nil {
			return "", err
		}
		had := w.found
		var now claim.State
		if res.Claim != nil {
			now = res.Claim.State
		}
		w.heart(now, res.Claim != nil, nil)
		if had && !w.found {
			return strings.TrimRight(text.String(), "\n"), nil
		}
		w.text, w.asked = strings.Split(strings.TrimRight(text.String(), "\n"), "\n"), w.now
		w.pace(watchPace)
	}
	w.view.Show(w.text)
	w.view.Say(w.looked(time.Now()))
	return "", nil
}

func (w *Watcher) looked(now time.Time) string {
	text := fmt.Sprintf("Proxmox was read %s ago, next in %s (at most one request every %s)",
		now.Sub(w.asked).Round(time.Second), max(0, w.due.Sub(now)).Round(time.Second), watchPace)
	if w.suspended() != "" || w.found && w.stood() >= claim.Watch {
		text = w.heartbeat() + "; " + text
	}
	return text
}

// isDue reports whether it is time to ask Proxmox again, by either clock. The monotonic clock stands still while this
// machine sleeps, and an old answer would pass for new.
func (w *Watcher) isDue() bool { return !w.now.Before(w.due) || !w.now.Round(0).Before(w.due.Round(0)) }

// pace sets when to ask Proxmox again, by the number of requests since the last call.
func (w *Watcher) pace(least time.Duration) {
	w.due = w.now.Add(max(least, time.Duration(w.px.Requests())*watchPace))
}
