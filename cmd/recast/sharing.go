package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/pipeline/support"
)

const (
	// shareSoon is when a run is shared first, then after twice that time, and so on until shareOften: even one that is
	// killed in its first minute has left its plan, which may have to wait for answers.
	shareSoon = 3 * time.Second
	// shareOften is the time between two copies of a run that goes on. Copying takes a twentieth of the time at most.
	shareOften = time.Minute
	// shareOnce is how long a copy may take while the run goes on: a registry that does not answer is asked again.
	shareOnce = 5 * time.Minute
	// shareWait is how long a command waits for its last copy, or for a list, at most.
	shareWait = 15 * time.Second
	// learnWait is how long a command on a fresh machine waits for past locks from the mirror.
	learnWait = 3 * time.Second
	// recentRuns is how many runs are looked at for past locks.
	recentRuns = 3
)

// sharing is how a project's runs are copied; false: they are not.
func sharing(s *streams, p pipeline.Project, cl *closers) (past.Sharing, bool, error) {
	list := pipeline.SharedRuns(p)
	if list == "" {
		return past.Sharing{}, false, nil
	}
	r, err := connectRegistry(s, p, cl)
	if err != nil {
		return past.Sharing{}, false, err
	}
	return past.Sharing{
		Runs: p.Runs(), Records: registry.NewRecords(r), List: list, Lock: p.Locks().Text,
	}, true, nil
}

// sharer copies the runs of a command to the mirror while they go on, and once more at the end. What it can't do is only a
// warning: the nodes come first.
type sharer struct {
	past.Sharing
	auto    bool            // not to where anyone can read it
	secrets func() []string // those here now: a run gets machine configurations while it goes on, and forgets them
	known   []string        // those that have been
	hide    redact.Redactor

	mu   sync.Mutex
	runs []string

	asked bool // whether anyone can read it
	err   error
}

// shareRuns returns what is to be called when a run begins (pipeline.RollOptions.Began). Closing cl makes the last copy.
func shareRuns(ctx context.Context, s *streams, p pipeline.Project, cl *closers) func(run, dir string) {
	share, wanted, err := sharing(s, p, cl)
	if !wanted {
		if err != nil {
			s.warn("runs are not shared: " + err.Error())
		}
		return s.telemetry.Began
	}
	h := &sharer{Sharing: share, secrets: func() []string { return slices.Concat(secretsHere(), support.Secrets(p)) }, auto: p.Config.History.Share == config.ShareAuto}
	h.Hide = redact.Growing(func(b []byte) []byte { return h.hide.JSON(b) })
	going, stop := context.WithCancel(ctx)
	var copying sync.WaitGroup
	copying.Go(func() { h.follow(going) })
	cl.add(func() error {
		stop()
		copying.Wait()
		if ctx.Err() != nil { // a run that was stopped is shared, too; while a last copy is made, Ctrl-C ends it
			ctx = context.WithoutCancel(ctx)
		}
		h.last(ctx, s)
		return nil
	})
	return func(run, dir string) {
		s.telemetry.Began(run, dir)
		h.mu.Lock()
		defer h.mu.Unlock()
		if !slices.Contains(h.runs, run) {
			h.runs = append(h.runs, run)
		}
	}
}

// follow copies runs until ctx ends.
func (h *sharer) follow(ctx context.Context) {
	for wait := shareSoon; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		began := time.Now()
		once, cancel := context.WithTimeout(ctx, shareOnce)
		h.err = h.share(once)
		cancel()
		if wait = max(min(2*wait, shareOften), 20*time.Since(began)); len(h.begun()) == 0 {
			wait = shareSoon
		}
	}
}

func (h *sharer) begun() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.runs)
}

// errForAnyone says why a run is not shared.
var errForAnyone = errors.New("anyone on the internet can read the mirror: history.share in recast.yaml can be always, or never, which silences this")

func (h *sharer) share(ctx context.Context) error {
	runs := h.begun()
	if len(runs) == 0 || errors.Is(h.err, errForAnyone) || errors.Is(h.err, images.ErrDenied) {
		return h.err
	}
	if h.auto && !h.asked {
		open, err := h.Records.ForAnyone(ctx, h.List)
		if err != nil {
			return err
		}
		if open {
			return errForAnyone
		}
		h.asked = true
	}
	h.known = slices.Concat(h.known, h.secrets())
	slices.Sort(h.known)
	h.known = slices.Compact(h.known)
	h.hide = redact.New(h.known)
	var errs []error
	for _, run := range runs {
		errs = append(errs, h.Share(ctx, run))
	}
	return errors.Join(errs...)
}

// last makes the last copy, and says what was not shared.
func (h *sharer) last(ctx context.Context, s *streams) {
	if len(h.begun()) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, shareWait)
	defer cancel()
	slow := time.AfterFunc(time.Second, func() { s.say("copying the run to " + h.List + " …") })
	defer slow.Stop()
	if err := h.share(ctx); err != nil {
		s.warn("other machines do not see this run in recast history: " + err.Error())
	}
}

// fetchRuns copies runs of other machines to this one, most of them at most; 0: all. Without them, history is what this
// machine knows.
func fetchRuns(ctx context.Context, s *streams, p pipeline.Project, most int, warn func(string)) {
	var cl closers
	defer cl.close()
	share, wanted, err := sharing(s, p, &cl)
	if wanted {
		ctx, cancel := context.WithTimeout(ctx, shareWait)
		defer cancel()
		slow := time.AfterFunc(time.Second, func() { s.say("reading the runs in " + share.List + " …") })
		defer slow.Stop()
		err = share.Fetch(ctx, most, warn)
	}
	if err != nil {
		warn("runs of other machines are not shown: " + err.Error())
	}
}

// learnLocks finds past locks that this machine does not have: in git, and if there are none, in the runs of other
// machines. They say what has changed, and what prune keeps. It is only information: errors end it.
func learnLocks(ctx context.Context, s *streams, p pipeline.Project) {
	learnFromGit(ctx, p)
	if !p.Locks().Known() {
		ctx, cancel := context.WithTimeout(ctx, learnWait)
		defer cancel()
		fetchRuns(ctx, s, p, recentRuns, func(string) {})
	}
}

// learnFromGit reads recast.lock at the last commits that changed it.
func learnFromGit(ctx context.Context, p pipeline.Project) {
	said, _ := askedGit(ctx, p.Config.Dir, "", "log", "-n", "20", "--no-show-signature", "--format=%ct %H", "--", "recast.lock") // no git, or no repository
	log := strings.Fields(string(said))
	var asked strings.Builder
	for i := 1; i < len(log); i += 2 {
		fmt.Fprintf(&asked, "%s:./recast.lock\n", log[i])
	}
	if asked.Len() == 0 {
		return
	}
	answer, _ := askedGit(ctx, p.Config.Dir, asked.String(), "cat-file", "--batch") // up to one that a partial clone lacks
	var newer time.Time
	for i := 0; i+1 < len(log); i += 2 { // "<object> blob <bytes>\n<content>\n", or "<name> missing\n"
		head, rest, _ := bytes.Cut(answer, []byte("\n"))
		answer = rest
		fields := strings.Fields(string(head))
		if len(fields) != 3 || fields[1] != "blob" {
			continue
		}
		size, err := strconv.Atoi(fields[2])
		seconds, errTime := strconv.ParseInt(log[i], 10, 64)
		if err != nil || errTime != nil || size < 0 || size >= len(answer) {
			return
		}
		at := time.Unix(seconds, 0)
		if !newer.IsZero() && !at.Before(newer) { // a rebase gives many commits the same time, and which lock was the last one counts
			at = newer.Add(-time.Second)
		}
		newer = at
		_ = p.Locks().Learn(answer[:size], at) // it is of another format, or .recast can't be written
		answer = answer[size+1:]
	}
}
