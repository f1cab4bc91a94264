package story_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/story"
)

// lines makes a log of "second msg key=value …" lines; values with blanks are in 'quotes'.
func lines(said ...string) string {
	var b strings.Builder
	for _, l := range said {
		at, rest, _ := strings.Cut(l, " ")
		fmt.Fprintf(&b, `{"time":"2026-11-21T04:%s.000000001Z","level":"INFO",%s}`+"\n", at, rest)
	}
	return b.String()
}

func event(step, status string, more ...string) string {
	return strings.Join(append([]string{fmt.Sprintf(`"msg":"step","step":"roll/workers/%s","status":"%s"`, step, status)}, more...), ",")
}

const began = `"msg":"command","status":"started","command":"recast roll","version":"v1"`

// recreated is a complete turn.
var recreated = []string{
	"00:00 " + began,
	"00:01 " + `"msg":"run","run":"r","status":"began"`,
	"00:01 " + event("wk1/pull", "started"),
	"00:02 " + event("wk1/pull", "done"),
	"00:02 " + event("wk1", "started", `"title":"recreate wk1 (VM 9 on pve1)"`),
	"00:02 " + event("wk1/gate", "started"), "00:03 " + event("wk1/gate", "done"),
	"00:03 " + event("wk1/take-down", "started"),
	"00:03 " + event("wk1/take-down/drain", "started"),
	"00:05 " + event("wk1/take-down/drain", "note", `"text":"evicting web-1"`),
	"00:10 " + event("wk1/take-down/drain", "done"),
	"00:10 " + event("wk1/take-down/stop", "started"), "00:20 " + event("wk1/take-down/stop", "done"),
	"00:20 " + event("wk1/take-down/park", "started"),
	"00:21 " + event("wk1/take-down/park/scsi0", "started"), "00:22 " + event("wk1/take-down/park/scsi0", "note", `"text":"half"`), "00:24 " + event("wk1/take-down/park/scsi0", "done"),
	"00:25 " + event("wk1/take-down/park", "done"), "00:25 " + event("wk1/take-down", "done"),
	"00:25 " + event("wk1/bring-up", "started"),
	"00:25 " + event("wk1/bring-up/create-vm", "skipped", `"text":"it is there"`),
	"00:26 " + event("wk1/bring-up/configure", "started"),
	"00:30 " + event("wk1/bring-up/configure", "note", `"text":"no answer"`),
	"00:50 " + event("wk1/bring-up/configure", "note", `"text":"it is the blank machine that was made, its certificate's fingerprint ab"`),
	"00:55 " + event("wk1/bring-up/configure", "done"),
	"00:55 " + event("wk1/bring-up/wait-healthy", "started"),
	"01:10 " + event("wk1/bring-up/wait-healthy", "note", `"text":"wk1 healthy for 30s: healthy, settling"`),
	"01:40 " + event("wk1/bring-up/wait-healthy", "done"),
	"01:40 " + event("wk1/bring-up", "done"),
	"01:41 " + event("wk1", "done", `"title":"recreate wk1 (VM 9 on pve1)"`, `"text":"runs v1.13.9"`),
	"01:41 " + `"msg":"pulse","kubernetes":true,"nodes":2,"notReady":["wk1"],"etcd":false`,
	"01:42 " + `"msg":"command","status":"ended","command":"recast roll","exitCode":0,"seconds":102`,
}

func read(t *testing.T, files map[string]string) story.Story {
	t.Helper()
	dir := fstest.MapFS{}
	for name, text := range files {
		dir[name] = &fstest.MapFile{Data: []byte(text)}
	}
	s := must.Get(story.Read(dir))(t)
	return s
}

// summary is a turn in short: its stages with their seconds.
func summary(turn *story.Turn) string {
	head := turn.Node + " " + turn.Strategy() + " " + orOpen(turn.Status)
	if !turn.AwayFrom.IsZero() {
		head += fmt.Sprintf(" away %s-%s", turn.AwayFrom.Format("04:05"), orOpen(strings.TrimPrefix(turn.AwayTo.Format("04:05"), "00:00")))
	}
	parts := []string{head}
	for _, g := range turn.Stages {
		took := "?"
		if !g.Ended.IsZero() {
			took = fmt.Sprint(int(g.Ended.Sub(g.Began).Seconds()))
		}
		parts = append(parts, fmt.Sprintf("%s %s %s", g.Name, took, orOpen(g.Status)))
	}
	return strings.Join(parts, "; ")
}

func orOpen(s string) string {
	if s == "" {
		return "open"
	}
	return s
}

func TestATurn(t *testing.T) {
	t.Parallel()
	s := read(t, map[string]string{story.LogName: lines(recreated...)})
	want := "wk1 recreate done away 00:10-01:41; pull 1 done; gate 1 done; drain 7 done; stop 10 done; park 5 done; create-vm 0 skipped; boot 24 done; configure 5 done; join 15 done; settle 30 done"
	if len(s.Turns) != 1 || summary(s.Turns[0]) != want {
		t.Errorf("turns:\n%s\n%s", summary(s.Turns[0]), want)
	}
	stages := s.Turns[0].Stages
	if stages[2].Noted != "evicting web-1" || stages[4].Noted != "half" || stages[6].Noted != "no answer" || stages[5].Text != "it is there" {
		t.Errorf("what they saw last: %+v", stages)
	}
	must.Hold(t, len(s.Pulses) == 1 && s.Pulses[0].Ready() == 1 && !s.Pulses[0].Etcd, "pulses %+v", s.Pulses)
	must.Hold(t, len(s.Sessions) == 1 && s.Sessions[0].Ended && s.Sessions[0].Version == "v1" && s.Begins && s.Broken == 0,
		"sessions %+v, begins %t, %d broken", s.Sessions, s.Begins, s.Broken)
	if o, any := s.Longest(); !any || o.Node != "wk1" || o.Seconds() != 91 || o.Open {
		t.Errorf("outage %+v", o)
	}
}

// What a turn took is what later plans expect of its node: how long it was away, and all steps that took any time.
func TestWhatATurnTook(t *testing.T) {
	t.Parallel()
	s := read(t, map[string]string{story.LogName: lines(recreated...)})
	plan := planning.NodePlan{Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate, OutageSeconds: 60}
	plan.Drift.Talos = "v1.13.8"
	got, measured := s.Turns[0].Took(plan)
	want := cluster.Took{
		Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate, Talos: "v1.13.8", Expected: 60, OutageSeconds: 91, WholeSeconds: 99,
		Steps: map[string]int{
			"pull": 1, "gate": 1, "take-down": 22, "take-down/drain": 7, "take-down/stop": 10, "take-down/park": 5, "take-down/park/scsi0": 3,
			"bring-up": 75, "bring-up/configure": 29, "bring-up/wait-healthy": 45,
		},
	}
	diff := cmp.Diff(want, got)
	must.Hold(t, diff == "" && measured, "measured %t (-want +got):\n%s", measured, diff)
	s = read(t, map[string]string{story.LogName: lines("00:01 "+event("wk1", "started"), "00:02 "+event("wk1/drain", "started"), "00:09 "+event("wk1", "done"))})
	if _, measured := s.Turns[0].Took(plan); measured {
		t.Error("a node that was never away has no outage to expect")
	}
}

// A killed process leaves a story without an end; the process that resumes the run adds the rest.
func TestCutOffAndResumed(t *testing.T) {
	t.Parallel()
	whole := lines(recreated[:14]...)
	s := read(t, map[string]string{story.LogName: whole[:len(whole)-20]})
	if o, any := s.Longest(); !any || !o.Open || summary(s.Turns[0]) != "wk1 recreate open away 00:10-open; pull 1 done; gate 1 done; drain 7 done; stop 10 done" {
		t.Errorf("cut off: %s, %+v", summary(s.Turns[0]), o)
	}
	must.Equal(t, "cut off", false, s.Turns[0].CutOff)
	must.Equal(t, "lines that can't be read, but for the last, which was cut off", 0, s.Broken)
	unfinished := func(step, status string, more ...string) string {
		return strings.Replace(event(step, status, more...), "workers", "unfinished", 1)
	}
	// The next process writes right after the unfinished line.
	s = read(t, map[string]string{story.LogName: whole + `{"time":"2026-11-21T04:00:21Z","level":"IN` + lines(
		"10:00 "+began,
		`10:00 "msg":"step","step":"roll","status":"note","text":"taking the claim over"`,
		"10:01 "+unfinished("wk1", "started", `"title":"recreate wk1 (VM 9 on pve1), left unfinished by run r"`),
		"10:02 "+unfinished("wk1/bring-up", "started"),
		"10:03 "+unfinished("wk1", "done"),
	)})
	must.Equal(t, "turns", []string{
		"wk1 recreate open away 00:10-open; pull 1 done; gate 1 done; drain 7 done; stop 10 done; park ? open",
		"wk1 recreate done away 10:02-10:03",
	}, []string{summary(s.Turns[0]), summary(s.Turns[1])})
	if o, _ := s.Longest(); len(s.Outages()) != 1 || o.Open || o.Seconds() != 593 {
		t.Errorf("outages %+v", s.Outages())
	}
	must.Hold(t, len(s.Notes) == 1 && s.Notes[0].Text == "taking the claim over", "notes %+v", s.Notes)
	if stages := s.Turns[0].Stages; !s.Turns[0].CutOff || s.Turns[1].CutOff || !stages[len(stages)-1].CutOff {
		t.Errorf("what was cut off: %+v, %+v", s.Turns[0], s.Turns[1])
	}
	if at := s.Turns[0].Until().Format("04:05"); at != "00:20" || len(s.Sessions) != 2 || s.Sessions[0].Ended || s.Broken != 0 {
		t.Errorf("the first turn was heard of until %s; sessions %+v", at, s.Sessions)
	}
}

// A node whose turn failed is unavailable until a later turn finishes it.
func TestAFailedNodeStaysUnavailable(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"failed", "stopped"} {
		log := []string{
			"00:00 " + began,
			"00:01 " + event("wk1", "started", `"title":"recreate wk1 (VM 9 on pve1)"`),
			"00:10 " + event("wk1/take-down/stop", "started"),
			"00:20 " + event("wk1/take-down/stop", status, `"error":"no quorum"`),
			"00:20 " + event("wk1", status, `"error":"no quorum"`),
			"00:30 " + `"msg":"command","status":"ended","command":"recast roll","exitCode":1`,
		}
		s := read(t, map[string]string{story.LogName: lines(log...)})
		if o, any := s.Longest(); !any || !o.Open || o.Seconds() != 20 || !s.Turns[0].AwayTo.IsZero() || fmt.Sprint(s.NotBack()) != "[wk1]" {
			t.Errorf("%s: outage %+v, not back: %v", status, o, s.NotBack())
		}
		unfinished := func(status string) string { return strings.Replace(event("wk1", status), "workers", "unfinished", 1) }
		s = read(t, map[string]string{story.LogName: lines(append(log, "50:00 "+began, "50:00 "+unfinished("started"), "50:10 "+unfinished("done"))...)})
		if o, _ := s.Longest(); len(s.Outages()) != 1 || o.Open || o.Seconds() != 3000 || len(s.NotBack()) > 0 {
			t.Errorf("%s and finished: outages %+v", status, s.Outages())
		}
	}
}

func TestLogsThatAreNotWhole(t *testing.T) {
	t.Parallel()
	later := lines(recreated[4:]...)
	type example struct {
		files  map[string]string
		turns  int
		begins bool
		broken int
	}
	cases := map[string]example{
		"none":           {nil, 0, true, 0},
		"empty":          {map[string]string{story.LogName: ""}, 0, true, 0},
		"in two":         {map[string]string{story.OlderLogName: lines(recreated[:4]...), story.LogName: later}, 1, true, 0},
		"only the newer": {map[string]string{story.LogName: later}, 1, false, 0},
		"garbage":        {map[string]string{story.LogName: "\x00\x00\n{\"time\":1}\n{}\n" + later + "{\"tim"}, 1, false, 3},
		"an endless line": {
			map[string]string{story.LogName: strings.Repeat("x", 5<<20) + "\n" + later}, 1, false, 1,
		},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		s := read(t, c.files)
		must.Hold(t, len(s.Turns) == c.turns && s.Begins == c.begins && s.Broken == c.broken,
			"%d turns, begins %t, %d broken", len(s.Turns), s.Begins, s.Broken)
	})
}

// Gates and hooks after a node are not part of the outage; a failure has its hints.
func TestGatesBehindANode(t *testing.T) {
	t.Parallel()
	s := read(t, map[string]string{story.LogName: lines(
		"00:00 "+event("wk1", "started", `"title":"in-place wk1 (VM 9 on pve1)"`),
		"00:01 "+event("wk1/upgrade/reboot", "started"),
		"00:31 "+event("wk1/upgrade/reboot", "done"),
		"00:32 "+event("wk1/ask-gates-again", "started"),
		"05:32 "+event("wk1/ask-gates-again", "failed", `"error":"ceph is not well"`, `"hints":["ceph status"]`),
		"05:32 "+event("wk1", "failed", `"error":"ceph is not well"`),
		"05:33 "+event("wk2", "not started", `"title":"in-place wk2 (VM 8 on pve1)"`),
	)})
	must.Equal(t, "turn", "wk1 in-place failed away 00:01-00:32; reboot 30 done; ask-gates-again 300 failed", summary(s.Turns[0]))
	got := s.Turns[0].Stages[1]
	must.Hold(t, got.Error == "ceph is not well" && len(got.Hints) == 1, "%+v", got)
	must.Hold(t, len(s.Turns) == 2 && s.Turns[1].Status == "not started", "turns %+v", s.Turns)
}
