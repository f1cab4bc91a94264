package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
)

// scene is a lab in front of a control plane in which one worker, wk1, is rolled
// repeatedly, each time with another trouble.
type scene struct {
	*user
	t     *testing.T
	plane *plane.ControlPlane
}

// trouble is an obstacle to a roll.
type trouble struct {
	name string
	// roll is the timeouts in recast.yaml; "": long enough for everything.
	roll string
	// begins makes the trouble before the roll; the result ends it.
	begins func(s *scene) (ends func())
	// meanwhile runs during the roll.
	meanwhile func(s *scene)
	code      int
	says      []string
	// after checks the cluster after the roll, before the trouble ends.
	after func(s *scene)
}

const (
	soon     = "drain: {timeout: 10s}\n  timeouts: {stop: 1m, boot: 2m, join: 2m}"
	briefly  = "timeouts: {stop: 1m, boot: 2m, join: 15s}"
	patient  = "timeouts: {stop: 1m, boot: 2m, join: 2m}"
	target   = "wk1"
	rollLine = "roll --yes --only " + target
)

// TestTroubles: the roll ends as the trouble says, and the same command finishes it once
// the trouble is over.
func TestTroubles(t *testing.T) {
	t.Parallel() // both mostly wait
	plane := plane.Start(t)
	u := startLab(t, plane)
	for _, c := range troubles() {
		t.Run(c.name, func(t *testing.T) {
			s := &scene{user: u, t: t, plane: plane}
			u.t = t
			s.suffer(c)
			t.Attr("kubernetes-troubles", "1")
		})
	}
	u.t = t
	u.must(0, "lab check --dir .", "persistent disks intact")
	t.Attr("commands", strconv.Itoa(u.count))
}

func (s *scene) suffer(c trouble) {
	s.t.Helper()
	fmt.Fprintf(s.t.Output(), "\n%s\n", c.name)
	s.waits(patient)
	s.must(0, "lab patch iscsi-tools --dir .")
	s.must(0, "lock --update")
	s.must(2, "drift", "stale    "+target)
	ends := func() {}
	if c.begins != nil {
		ends = c.begins(s)
	}
	if c.roll != "" {
		s.waits(c.roll)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c.meanwhile != nil {
			c.meanwhile(s)
		}
	}()
	said := s.run(rollLine)
	<-done
	if c.after != nil {
		c.after(s)
	}
	ends()
	said.has(s.t, c.code, c.says...)
	s.waits(patient)
	s.must(0, rollLine)
	s.settled()
}

// settled waits until the other worker and the workloads are as before.
func (s *scene) settled() {
	s.t.Helper()
	s.until("no node is cordoned", func() bool {
		for _, n := range s.nodes() {
			if n.Spec.Unschedulable || !nodeReady(&n) {
				return false
			}
		}
		return true
	})
}

// waits writes recast's timeouts.
func (s *scene) waits(roll string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "recast.yaml")
	b := must(os.ReadFile(path))(s.t)
	head, _, found := strings.Cut(string(b), "\nroll:\n")
	if !found {
		s.t.Fatalf("recast.yaml has no roll:\n%s", b)
	}
	text := head + "\nroll:\n  settle: 2s\n  poll: 200ms\n  " + roll + "\n"
	mustDo(s.t, os.WriteFile(path, []byte(text), 0o600))
}

// until waits until something happens by itself.
func (s *scene) until(what string, so func() bool) {
	s.t.Helper()
	for range 600 {
		if so() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.t.Errorf("after a minute it is not so that %s", what)
}
