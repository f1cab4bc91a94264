package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/browser"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/internal/report"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/pipeline/support"
	"github.com/spf13/cobra"
)

func newHistoryCmd(s *streams, g *globals) *cobra.Command {
	var out string
	var limit int
	var page htmlPage
	c := &cobra.Command{
		Use: "history [RUN]", Short: "List past runs: when, what, how long each node was down",
		Long: `List past runs, newest first: their target, how they ended, how many nodes were
finished, how long the run took, and the longest time that a node was down. With a run
ID, or a unique part of one, show that run in detail: who ran it, what changed in the
lock, each node with its stages, errors with what to do, hooks.

--html writes that run, by default the last one, as one HTML file: each node with its
stages and its outage, etcd and Ready nodes over time, the plan, what the lock changed,
hooks with their output, errors. It loads nothing from the network and needs no script.
Every roll writes it at its end, to .recast/reports/RUN.html; --open writes that and
opens it in a browser, also for a run that was killed or still runs. What looks like a
secret is removed.

Runs of other machines come from images.mirror: every run is copied there while it
goes on, without secrets, so what a killed CI runner did can be read anywhere with
recast.yaml alone. history.share in recast.yaml says otherwise; a mirror that anyone
on the internet can read gets no runs. Runs of this machine, and those copied before,
are read from .recast, so it works while everything is down.

The mirror keeps the last 100 runs of a cluster. So does this machine, and those whose
old system disks are still parked; a successful roll removes older ones. In CI without
a mirror, keep .recast/reports as an artefact, but not all of .recast, since journals
hold machine configurations.`,
		Example: `  recast history
  recast history 3f2a          # the run whose ID ends with 3f2a
  recast history --open        # the report of the last run, in a browser
  recast history --html - | gzip >report.html.gz
  recast history -o json | jq '.runs[] | select(.result != "done")'`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: g.completeRuns,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := g.openWith(true)
			if err != nil {
				return err
			}
			hide := redact.New(secretsHere())
			html := page.open || page.file != ""
			fetchRuns(c.Context(), s, p, limit, s.warn)
			if len(args) == 0 && !html {
				runs, problems := p.Runs().All(thisProcess())
				h := ui.HistoryOf(runs, problems, limit, logOf, hide.Text)
				return hiding(s.out, out, hide, func(w io.Writer) error { return ui.WriteHistory(w, out, h) })
			}
			run, err := p.Runs().Find(strings.Join(args, ""), thisProcess())
			if err != nil {
				return err
			}
			if html {
				return page.write(c.Context(), s, p, run)
			}
			log, err := story.ReadDirs(run.Dirs)
			if err != nil {
				run.Problems = append(run.Problems, err.Error())
			}
			file := p.Page(run.ID)
			if _, err := os.Stat(file); err != nil {
				file = "" // --open creates it
			}
			r := ui.Tell(run, log, nearby(file), hide.Text)
			return hiding(s.out, out, hide, func(w io.Writer) error { return ui.WriteRun(w, out, r) })
		},
	}
	outputFlag(c, &out, "text", "json")
	c.Flags().IntVar(&limit, "limit", 20, "how many `runs` to list, newest first; 0: all")
	c.Flags().StringVar(&page.file, "html", "", "write the run as one HTML `file`; -: to stdout")
	c.Flags().BoolVar(&page.open, "open", false, "open the report of the run in a browser")
	return c
}

// logOf reads the log of a run, up to the first part that can't be read.
func logOf(run past.Run) story.Story {
	log, _ := story.ReadDirs(run.Dirs) // recast history RUN says why
	return log
}

// hiding removes secrets from JSON output, which holds everything that a journal holds.
// Text was redacted already, before its lines were wrapped.
func hiding(w io.Writer, format string, hide redact.Redactor, print func(io.Writer) error) error {
	if format != "json" {
		return print(w)
	}
	var b bytes.Buffer
	if err := print(&b); err != nil {
		return err
	}
	_, err := w.Write(hide.JSON(b.Bytes()))
	return err
}

// thisProcess says how to tell whether the process of a past run is still alive.
func thisProcess() past.Options {
	return past.Options{Holder: holder.This(), Dead: holder.Dead, Suspended: holder.Suspended}
}

// htmlPage is where the report of a run goes.
type htmlPage struct {
	file string // "-": stdout; "": below .recast/reports
	open bool   // in a browser
}

func (h htmlPage) write(ctx context.Context, s *streams, p pipeline.Project, run past.Run) error {
	file := cmp.Or(h.file, p.Page(run.ID))
	if file == "-" {
		return report.Write(s.out, drawn(run))
	}
	if err := savePage(file, run); err != nil {
		return fault.WithHint(err, "recast history RUN --html FILE writes it elsewhere, --html - to stdout")
	}
	if _, err := fmt.Fprintln(s.out, nearby(file)); err != nil {
		return err
	}
	if h.open {
		return browser.Show(ctx, browser.Opener(), file)
	}
	return nil
}

// drawn collects what the report of a run is made of. If the log can't be read, the report says so.
func drawn(run past.Run) report.Run {
	log, err := story.ReadDirs(run.Dirs)
	if err != nil {
		run.Problems = append(run.Problems, err.Error())
	}
	return report.Run{Past: run, Story: log, Now: time.Now(), Version: version, Hide: redact.New(secretsHere()).Text}
}

func savePage(file string, run past.Run) error {
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = savefile.Write(file, func(w io.Writer) error { return report.Write(w, drawn(run)) })
	}
	return fault.Prefix("report", err)
}

// savePages writes the reports of the runs that a command worked on, and returns their
// files. A report that can't be written is only a warning: the run is over.
func savePages(s *streams, p pipeline.Project, rep pipeline.Report) (files []string) {
	for _, id := range append(slices.Clone(rep.Resumed), rep.Run) {
		if id == "" || !p.Runs().Has(id) {
			continue // the command only finished an earlier run
		}
		run, err := p.Runs().Find(id, thisProcess())
		if err == nil {
			err = savePage(p.Page(id), run)
		}
		if err != nil {
			fmt.Fprintf(s.err, "warning: no report of run %s: %v\n", id, err)
			continue
		}
		files = append(files, nearby(p.Page(id)))
	}
	return files
}

// nearby returns a path relative to the working directory, if the path is below that directory.
func nearby(path string) string {
	here, err := os.Getwd()
	if err != nil || !filepath.IsAbs(path) {
		return path
	}
	if short, err := filepath.Rel(here, path); err == nil && !strings.HasPrefix(short, "..") {
		return short
	}
	return path
}

const (
	// shareSoon is the wait before a run is shared for the first time. Each further wait is twice as long, up to
	// shareOften. So even a run that is killed in its first minute has left its plan, which may have to wait for answers.
	shareSoon = 3 * time.Second
	// shareOften is the time between two copies of an active run. Copying takes at most a twentieth of the time.
	shareOften = time.Minute
	// shareOnce is how long a copy of an active run may take: a registry that does not answer is asked again.
	shareOnce = 5 * time.Minute
	// shareWait is how long a command waits at most for its last copy, or for a list.
	shareWait = 15 * time.Second
	// learnWait is how long a command on a fresh machine waits for past locks from the mirror.
	learnWait = 3 * time.Second
	// recentRuns is how many runs are looked at for past locks.
	recentRuns = 3
)

// sharing returns how a project's runs are copied; false: they are not copied.
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

// sharer copies the runs of a command to the mirror while they are active, and once more at the end. A failure is
// only a warning: the nodes come first.
type sharer struct {
	past.Sharing
	auto    bool            // do not copy to a mirror that anyone can read
	secrets func() []string // the secrets here now: an active run stores machine configurations, and deletes them later
	known   []string        // all secrets so far
	hide    redact.Redactor

	mu   sync.Mutex
	runs []string

	asked bool // the mirror was asked, and not everyone can read it
	err   error
}

// shareRuns returns the function to call when a run begins (pipeline.RollOptions.Began). Closing cl makes the last
// copy.
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
		if ctx.Err() != nil { // a stopped run is shared, too; otherwise Ctrl-C ends the last copy
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

// fetchRuns copies runs of other machines to this machine, up to the number most; 0: all. Without the copies, history
// shows what this machine knows.
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

// learnLocks finds past locks that this machine does not have: in git, and, if this machine has none yet, in the runs
// of other machines. Past locks say what has changed, what prune keeps, and what recast has uploaded. They are only
// information: an error ends the search.
func learnLocks(ctx context.Context, s *streams, p pipeline.Project) {
	known := p.Locks().Known()
	learnFromGit(ctx, p)
	if !known {
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
	answer, _ := askedGit(ctx, p.Config.Dir, asked.String(), "cat-file", "--batch") // the answer ends at an object that a partial clone lacks
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
		if !newer.IsZero() && !at.Before(newer) { // a rebase gives many commits the same time, but the order of their locks matters
			at = newer.Add(-time.Second)
		}
		newer = at
		_ = p.Locks().Learn(answer[:size], at) // fails for a lock of another format, or if .recast can't be written
		answer = answer[size+1:]
	}
}

// origin says who starts a run, and at which commit of the directory with recast.yaml. It reads the variables of CI
// systems (Gitea and Forgejo use GitHub's names), else it asks the system and git.
func origin(ctx context.Context, dir string) past.Origin {
	o := past.Origin{
		Recast: version,
		Who:    cmp.Or(os.Getenv("GITHUB_ACTOR"), os.Getenv("GITLAB_USER_LOGIN")),
		Commit: cmp.Or(os.Getenv("GITHUB_SHA"), os.Getenv("CI_COMMIT_SHA")),
	}
	if me, err := user.Current(); err == nil && o.Who == "" {
		o.Who = me.Username
	}
	if o.Commit == "" {
		o.Commit = commitIn(ctx, dir)
	}
	return o
}

// askGit is how long a run waits for git at most: git's answers are only information.
const askGit = 5 * time.Second

// commitIn returns the commit that is checked out in a directory, with a plus if files that git knows have changed
// since; "" if there is none.
func commitIn(ctx context.Context, dir string) string {
	out, err := askedGit(ctx, dir, "", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")
	if err != nil { // no git, no repository, or it is too slow
		return ""
	}
	return strings.TrimSpace(string(out))
}

// askedGit returns git's output about the repository that a directory is in. It asks no remote for objects that a
// partial clone lacks: the remote could ask for a password.
func askedGit(ctx context.Context, dir, stdin string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askGit)
	defer cancel()
	git := exec.CommandContext(ctx, "git", append([]string{"-C", dir, "-c", "protocol.allow=never"}, args...)...)
	git.Env, git.Stdin = command.Environ(os.Environ(), nil), strings.NewReader(stdin)
	git.WaitDelay = time.Second // for processes that git has started and left
	return git.Output()
}
