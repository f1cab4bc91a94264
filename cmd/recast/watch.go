package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/telemetry"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

const (
	watchHere = 500 * time.Millisecond // between two looks at a log on this machine
	watchPace = 2 * time.Second        // for each request to Proxmox
	watchBeat = 10 * time.Second       // between two looks at the claim
)

// watcher draws the run that is in progress: from its log where it was begun on this
// machine, else from what Proxmox has of it.
type watcher struct {
	p    pipeline.Project
	px   *pipeline.Watched
	look func(context.Context) (pipeline.StatusResult, error)
	view *live.View
	now  time.Time // of the look

	here   pipeline.Running // zero: no run was begun here, or it has ended
	ended  string           // how the one before it did
	follow *live.Follower
	due    time.Time // when Proxmox may be asked again
	asked  time.Time // when it was asked last
	text   []string  // what it said
	beat   cluster.ClaimState
	beaten time.Time // when the claim's counter was seen to go up
	beheld time.Time // when it was looked at last
	found  bool      // the claim was there
	mute   error     // what kept it from being looked at
}

// canWatch says why status can't be drawn; nil: it can.
func canWatch(s *streams) error {
	if out, ok := s.out.(*os.File); ok && ui.IsTerminal(out) && live.Able(out, os.Getenv("TERM")) {
		return nil
	}
	return fault.WithHint(errUsage{errors.New("--watch draws on a terminal, and standard output is none")}, "recast status -o json tells a script how things stand")
}

// watchStatus draws until nobody is at work any more, or somebody presses Ctrl-C.
func watchStatus(ctx context.Context, s *streams, p pipeline.Project, px pipeline.Listing, src pipeline.StatusSources) error {
	out := s.out.(*os.File) // as canWatch has seen
	w := &watcher{p: p, px: p.Watched(px), view: live.NewView(out, "recast status --watch", os.Getenv("NO_COLOR") == "")}
	src.Proxmox = w.px
	w.look = func(ctx context.Context) (pipeline.StatusResult, error) { return pipeline.Status(ctx, p, src) }
	s.err.to(func(p []byte) bool { return w.view.Print(string(p)) })
	defer s.err.to(nil)
	w.view.Start()
	last, err := w.until(ctx)
	if last != "" {
		w.view.Close()
	} else if w.view.Pause(); err == nil { // whoever leaves ends nothing
		last = w.leaving()
	}
	if last != "" {
		fmt.Fprintln(s.out, last)
	}
	return err
}

// until watches, and returns what there is to say at the end of the run; "" if
// somebody leaves before that.
func (w *watcher) until(ctx context.Context) (last string, err error) {
	tick := time.NewTicker(watchHere)
	defer tick.Stop()
	for {
		w.now = time.Now()
		if last, err := w.once(ctx); last != "" || err != nil {
			if ctx.Err() != nil {
				return w.gone(), nil // Ctrl-C is how one leaves
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

// once looks at what there is to be looked at by now.
func (w *watcher) once(ctx context.Context) (last string, err error) {
	running, here, err := w.p.RunningHere()
	if err != nil {
		return "", err
	}
	if here && w.passed(running) {
		w.turnAway()
		running, here = pipeline.Running{}, false
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

// passed says whether the run that was begun here is over, though its journal does not
// know: killed here it may have been finished elsewhere, and another one has had the
// claim since its log was written last.
func (w *watcher) passed(r pipeline.Running) bool {
	if !w.found || w.beat.Run == r.ID {
		return false
	}
	written := r.Started
	if info, err := os.Stat(filepath.Join(r.Dir, telemetry.LogName)); err == nil {
		written = info.ModTime()
	}
	return written.Before(w.beat.Since)
}

// turnAway turns from the run that was begun here to whoever is at work.
func (w *watcher) turnAway() {
	if w.here.ID == "" {
		return
	}
	w.here, w.due = pipeline.Running{}, w.now
	w.view.Begin("recast status --watch", w.now)
}

// over notes how the run ended that was begun here.
func (w *watcher) over() error {
	outcome, err := w.p.Ended(w.here.ID)
	w.ended = fmt.Sprintf("run %s: %s", w.here.ID, outcome)
	err = errors.Join(err, w.view.Follow(w.follow)) // what was logged last
	w.here, w.due = pipeline.Running{}, w.now
	return err
}

// gone is how the last run ended that was begun here; "" while one goes on.
func (w *watcher) gone() string {
	if w.here.ID != "" {
		return ""
	}
	return w.ended
}

// afterwards waits until nobody holds the claim: a roll that has finished what an
// earlier run left begins one of its own.
func (w *watcher) afterwards(ctx context.Context) (last string, err error) {
	if w.now.Before(w.due) {
		return "", nil
	}
	if _, found, err := w.p.Claim(ctx, w.px); !found || err != nil {
		return w.ended, err
	}
	w.pace(watchPace)
	return "", nil
}

// begin turns to a run that was begun here.
func (w *watcher) begin(r pipeline.Running) {
	w.here = r
	w.follow = &live.Follower{Path: filepath.Join(r.Dir, telemetry.LogName), Older: filepath.Join(r.Dir, story.OlderLogName)}
	w.view.Begin("recast run "+r.ID, r.Started)
	if r.Plan != nil {
		w.view.Plan(*r.Plan)
	}
}

// pulse looks now and then whether the run that was begun here still lives.
func (w *watcher) pulse(ctx context.Context) {
	if w.now.Before(w.due) {
		return
	}
	claim, found, err := w.p.Claim(ctx, w.px)
	if ctx.Err() != nil {
		return
	}
	w.heart(claim, found, err)
	w.view.Say(w.heartbeat())
	w.pace(watchBeat)
}

// heart notes whether the claim's counter went up. While nobody can look, nobody sees
// it stand still.
func (w *watcher) heart(claim cluster.ClaimState, found bool, err error) {
	if w.mute = err; err != nil {
		w.beaten, w.beheld = w.now, w.now
		return
	}
	if found && (!w.found || claim.Run != w.beat.Run || claim.Beat != w.beat.Beat) {
		w.beaten = w.now
	}
	w.beat, w.found, w.beheld = claim, found, w.now
}

// stood is how long the claim's counter was seen to stand still.
func (w *watcher) stood() time.Duration { return w.beheld.Sub(w.beaten).Round(time.Second) }

// silent is how long the log of the run that was begun here has stood still.
func (w *watcher) silent() time.Duration {
	written := w.here.Started
	if w.follow.Written.After(written) {
		written = w.follow.Written
	}
	return w.now.Sub(written).Round(time.Second)
}

func (w *watcher) heartbeat() string {
	switch {
	case w.mute != nil:
		return "Proxmox does not say whether that run still lives: " + w.mute.Error()
	case !w.found && w.silent() < cluster.ClaimWatch:
		return fmt.Sprintf("that run has logged something %s ago; nobody holds the claim in Proxmox, so it may be in Kubernetes", w.silent())
	case !w.found:
		return fmt.Sprintf("nobody holds the claim in Proxmox, and nothing was logged for %s: that run was killed or hangs; recast status says whether another machine finished it", w.silent())
	case w.stood() >= cluster.ClaimWatch:
		return fmt.Sprintf("%s holds the claim, and its heartbeat has stood still for %s: that run has died, or does not reach Proxmox; recast roll takes over", w.beat.Holder, w.stood())
	}
	return fmt.Sprintf("%s holds the claim, heartbeat %d", w.beat.Holder, w.beat.Beat)
}

// leaving is what there is to say to who leaves; "" where no run is in progress.
func (w *watcher) leaving() string {
	run := cmp.Or(w.here.ID, w.beat.Run)
	logs := w.here.ID != "" && w.silent() < cluster.ClaimWatch
	beats := w.found && w.mute == nil && w.stood() < cluster.ClaimWatch
	switch {
	case run == "":
		return ""
	case logs || beats:
		return "run " + run + " goes on"
	}
	return "run " + run + ": " + w.heartbeat()
}

// elsewhere draws what Proxmox has of a run that another machine began.
func (w *watcher) elsewhere(ctx context.Context) (last string, err error) {
	if !w.now.Before(w.due) {
		first := w.asked.IsZero()
		res, err := w.look(ctx)
		switch {
		case err != nil && (first || ctx.Err() != nil):
			return "", err
		case err != nil:
			w.heart(cluster.ClaimState{}, false, err)
			w.view.Say("Proxmox does not say how things stand: " + err.Error())
			w.pace(watchBeat)
			return "", nil
		case first:
			w.px.Requests() // as recast status would have sent them
		}
		res.Kept = nil // they are there before, and after
		var text strings.Builder
		if err := ui.WriteStatus(&text, "text", res); err != nil {
			return "", err
		}
		had := w.found
		var claim cluster.ClaimState
		if res.Claim != nil {
			claim = res.Claim.ClaimState
		}
		w.heart(claim, res.Claim != nil, nil)
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

// looked is what there is to say of the looks at Proxmox.
func (w *watcher) looked(now time.Time) string {
	text := fmt.Sprintf("looked at Proxmox %s ago, again in %s (a request every %s at most)",
		now.Sub(w.asked).Round(time.Second), max(0, w.due.Sub(now)).Round(time.Second), watchPace)
	if w.found && w.stood() >= cluster.ClaimWatch {
		text = w.heartbeat() + "; " + text
	}
	return text
}

// pace has the next look wait for as long as what this one has cost.
func (w *watcher) pace(least time.Duration) {
	w.due = w.now.Add(max(least, time.Duration(w.px.Requests())*watchPace))
}
