package step_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/step"
)

// diary records when steps start and end, in seconds.
type diary struct {
	start time.Time

	mu    sync.Mutex
	lines []string
}

func (l *diary) see(e step.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf("%.0f %s %s", time.Since(l.start).Seconds(), e.Path, e.Status))
}

func takes(id string, seconds int, err error) step.Step {
	return step.Step{ID: id, Do: func(context.Context) error {
		time.Sleep(time.Duration(seconds) * time.Second)
		return err
	}}
}

func nodeStep(id string, pull int, err error) step.Step {
	return step.Step{
		ID: id, Whole: true, Uses: []string{"turn"}, Ahead: []step.Step{takes("pull", pull, err)},
		Steps: func(context.Context) ([]step.Step, error) { return []step.Step{takes("roll", 10, nil)}, nil },
	}
}

func list(steps ...step.Step) func(context.Context) ([]step.Step, error) {
	return func(context.Context) ([]step.Step, error) { return steps, nil }
}

// Ahead steps run while earlier siblings run, for at most LookAhead children, and the
// order of the children does not change.
func TestAhead(t *testing.T) {
	t.Parallel()
	failed := errors.New("no such image")
	cases := map[string]struct {
		root step.Step
		want string
		err  bool
	}{
		"one ahead": {
			root: step.Step{ID: "r", LookAhead: 1, Steps: list(nodeStep("a", 3, nil), nodeStep("b", 8, nil), nodeStep("c", 1, nil))},
			want: "0 a/pull started;3 a/roll started;13 b/roll started;23 c/roll started;0 b/pull started;13 c/pull started",
		},
		"the order stays": {
			root: step.Step{ID: "r", LookAhead: 2, Steps: list(nodeStep("a", 3, nil), nodeStep("b", 30, nil), nodeStep("c", 1, nil))},
			want: "3 a/roll started;30 b/roll started;40 c/roll started;0 c/pull started",
		},
		"a failure lets what was begun end, and no other begin": {
			root: step.Step{ID: "r", LookAhead: 1, Steps: list(nodeStep("a", 3, nil), nodeStep("b", 8, failed), nodeStep("c", 1, nil))},
			want: "13 a done;8 b/pull failed;8 b failed;13 c not started", err: true,
		},
		"beside": {
			root: step.Step{ID: "r", Steps: list(takes("a", 5, nil), takes("b", 7, nil), step.Step{ID: "c", Beside: true, Do: takes("", 3, nil).Do}, takes("d", 1, nil))},
			want: "5 b started;5 c started;8 c done;12 b done;12 d started",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := &diary{start: time.Now()}
				err := (&step.Runner{Emit: l.see}).Run(t.Context(), c.root)
				if (err != nil) != c.err {
					t.Errorf("error %v", err)
				}
				have := "\n" + strings.ReplaceAll(strings.Join(l.lines, "\n"), " r/", " ") + "\n"
				for want := range strings.SplitSeq(c.want, ";") {
					if !strings.Contains(have, "\n"+want+"\n") {
						t.Errorf("no %q in:%s", want, have)
					}
				}
			})
		})
	}
}

// A quiet branch emits only the events of its children.
func TestQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &diary{start: time.Now()}
		root := step.Step{ID: "r", Steps: list(step.Step{ID: "n", Quiet: true, Steps: list(takes("a", 1, nil))})}
		if err := (&step.Runner{Emit: l.see}).Run(t.Context(), root); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"0 r started", "0 r/n/a started", "1 r/n/a done", "1 r done"}, l.lines); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}
