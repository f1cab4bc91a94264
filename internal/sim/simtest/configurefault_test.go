package simtest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/step"
)

// TestConfigureWithLostAnswers cuts recast off right after each change that it makes to a machine: for a
// moment, so that the answer is lost; and for longer than a trial lasts.
func TestConfigureWithLostAnswers(t *testing.T) {
	type story struct {
		line string
		away time.Duration
	}
	eachLong(t, oneWorker(), map[string]story{
		"without a reboot":                {noReboot, 5 * time.Second},
		"with a reboot":                   {needsReboot, 5 * time.Second},
		"without a reboot, away for long": {noReboot, 20 * time.Minute},
		"with a reboot, away for long":    {needsReboot, 20 * time.Minute},
	}, func(t *testing.T, lab *Lab, s story) {
		files := lab.keptConfigs()
		files.set(t, "wk1", s.line)
		start := files["wk1"]
		for cut := 1; ; cut++ {
			user := files.user(lab, fmt.Sprintf("20000101-0000-%04d", 2*cut))
			var changes atomic.Int64
			lab.Recorder.Hooks(nil, func(c record.Call) {
				if c.Proto == "talos" && c.Mutation && changes.Add(1) == int64(cut) {
					user.Cut()
					time.AfterFunc(s.away, user.Mend)
				}
			})
			err := user.roll(onlyWorker)(t.Context())
			lab.Recorder.Hooks(nil, nil)
			if changes.Load() < int64(cut) {
				must(t, err)
				if cut < 4 {
					t.Errorf("only %d changes", cut-1)
				}
				return
			}
			if err != nil && (fault.KindOf(err) == fault.Config || len(fault.Hints(err)) == 0) {
				t.Errorf("change %d: %v, hints %q", cut, err, fault.Hints(err))
			}
			if err != nil {
				must(t, files.user(lab, fmt.Sprintf("20000101-0000-%04d", 2*cut+1)).roll(onlyWorker)(t.Context()))
			}
			files.user(lab, firstRun).requireStale(t)
			lab.requireServing("wk1")
			lab.RequireIntact()
			files["wk1"] = cluster.Secret(strings.Replace(string(start), s.line, strings.NewReplacer(`"1"`, fmt.Sprintf("%q", fmt.Sprint(cut+1)), "renderD*", fmt.Sprint("renderD", cut)).Replace(s.line), 1))
		}
	})
}

// TestKilledBeforeItIsHealthy: the next run gives a node its old configuration back, too.
func TestKilledBeforeItIsHealthy(t *testing.T) {
	type story struct {
		node, from, to string
		upgrade        bool
	}
	const server, other = "registry.k8s.io/kube-apiserver", "registry.k8s.io/kube-apiserver-amd64"
	eachLong(t, threePlanes, map[string]story{
		"a control plane without its API server": {"cp2", server, other, false},
		"and after an upgrade in place":          {"cp2", server, other, true},
		"a control plane without its kubelet":    {"cp2", "ghcr.io/siderolabs/kubelet", "ghcr.io/nobody/kubelet", false},
	}, func(t *testing.T, lab *Lab, s story) {
		files := lab.keptConfigs()
		was := string(files[s.node])
		files.set(t, s.node, needsReboot)
		files[s.node] = cluster.Secret(strings.Replace(string(files[s.node]), s.from, s.to, 1))
		lab.brokenImage(s.node, s.to+":v1.35.4", talosapi.Unready)
		at := before("wait-healthy")
		if s.upgrade {
			at = before("configure/wait-healthy")
			lab.setRoll("canary: false", "strategy: in-place")
			lab.Patch(everywhere)
		}
		user := files.user(lab, firstRun)
		user.killedAt(t, at, user.rollNode(s.node))
		time.Sleep(5 * time.Minute)
		err := files.user(lab, secondRun).rollNode(s.node)(t.Context())
		requireFault(t, err, fault.Failed, s.node+" is not healthy with its new configuration", "it was given its old configuration back, and serves again")
		lab.requireServing(s.node)
		if string(lab.configOf(s.node)) != was {
			t.Errorf("%s keeps another configuration than before", s.node)
		}
	})
}

// TestARefusalAfterTheDrain: a node that does not get its configuration takes pods again.
func TestARefusalAfterTheDrain(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		files := lab.keptConfigs()
		files.set(t, "wk1", needsReboot)
		user := files.user(lab, firstRun)
		user.Emit = func(e step.Event) {
			if after("drain").is(e) {
				files.set(t, "wk1", noReboot)
			}
		}
		requireRefused(t, user.roll(onlyWorker)(t.Context()), "its file in talos.machineConfigs was changed")
		lab.requireServing("wk1")
		must(t, files.user(lab, secondRun).roll(onlyWorker)(t.Context()))
		files.user(lab, thirdRun).requireStale(t)
	})
}

// TestWhoComesBackAppliesNothing: a run that is cut off right after it has begun a trial, or staged a
// configuration, loses its claim to one with another recast.yaml, and changes nothing when it is back.
func TestWhoComesBackAppliesNothing(t *testing.T) {
	type story struct{ line, other string }
	eachLong(t, oneWorker(), map[string]story{
		"without a reboot": {noReboot, `sysctls: {vm.swappiness: "9"}`},
		"with a reboot":    {needsReboot, strings.Replace(needsReboot, "0666", "0600", 1)},
	}, func(t *testing.T, lab *Lab, s story) {
		mine, theirs := lab.keptConfigs(), lab.keptConfigs()
		mine.set(t, "wk1", s.line)
		theirs.set(t, "wk1", s.other)
		first, second := mine.user(lab, firstRun), lab.second()
		second.Elsewhere, second.MachineConfig = true, theirs.read
		var changes atomic.Int64
		gone, back := make(chan struct{}), make(chan struct{})
		lab.Recorder.Hooks(nil, func(c record.Call) {
			if c.Proto == "talos" && c.Mutation && changes.Add(1) == 3 {
				first.Cut()
				close(gone)
				time.AfterFunc(150*time.Second, func() { first.Mend(); close(back) })
			}
		})
		ended := make(chan error, 1)
		go func() { ended <- first.roll(onlyWorker)(t.Context()) }()
		<-gone
		must(t, second.roll(onlyWorker)(t.Context()))
		<-back
		if err := <-ended; fault.KindOf(err) != fault.Claimed || !strings.Contains(err.Error(), "lost the claim") {
			t.Errorf("the first run ends with %v", err)
		}
		second.requireStale(t)
		lab.requireServing("wk1")
		requireNoClaim(t, lab)
	})
}
