package operator

import (
	"fmt"
	"strings"
	"time"
)

// idle: in a minute in which nothing happens, the operator does nothing but renew its Lease.
func (f *fleet) idle() {
	before := f.operator.settle()
	time.Sleep(time.Minute) // that is what is measured
	c := f.operator.read().since(before)
	fmt.Fprintf(f.t.Output(), "idle, %d clusters: %s\n", f.clusters, c)
	if most := float64(f.clusters) / 10; c.reconciles > most || c.requests > most || c.writes > 0 { // watches may be renewed
		f.t.Errorf("in a minute without a change: %s", c)
	}
	f.t.Attr("idle-reconciles", fmt.Sprint(int(c.reconciles)))
	f.t.Attr("idle-requests", fmt.Sprint(int(c.requests)))

	before = f.operator.read()
	checks := f.player.count("check")
	f.kubectl("annotate talosclusters --all recast.dev/check-requested=again --overwrite")
	f.until("each is checked again", func() bool { return f.player.count("check") == checks+f.clusters })
	c = f.operator.settle().since(before).per(f.clusters)
	fmt.Fprintf(f.t.Output(), "a check of one that is in sync: %s; once an hour, that is %.2f requests per cluster and minute\n", c, c.requests/60)
	f.t.Attr("requests-per-check", fmt.Sprint(int(c.requests+0.5)))
}

// waves: the example of the documentation, approved, paused and continued with its commands.
func (f *fleet) waves() {
	t, p := f.t, f.player
	before := f.operator.read()
	f.apply(f.example())
	f.awaits("autumn", "AwaitingApproval")
	canaries := p.of("autumn")
	if len(canaries) != sites || running(canaries) > 0 {
		t.Errorf("%d clusters were rolled before stage all was approved, want the %d canaries", len(canaries), sites)
	}
	for _, r := range canaries {
		if r.cluster >= clusterName(sites) {
			t.Errorf("%s was rolled with the canaries", r.cluster)
		}
	}
	fmt.Fprintf(t.Output(), "%s\n", f.typed("kubectl get fleetroll autumn"))
	p.set(func() { p.hold = true })
	f.typed(`kubectl patch fleetroll autumn --type=merge -p '{"spec":{"approvedStages":["all"]}}'`)
	const atATime, perSite, pauseAfter = 10, 2, 30
	f.until("ten are rolled at a time", func() bool { return running(p.of("autumn")) == atATime })
	p.set(func() { p.hold = false })
	f.until("some have ended", func() bool { return len(p.of("autumn")) >= sites+pauseAfter })
	p.set(func() { p.hold = true })
	f.typed(`kubectl patch fleetroll autumn --type=merge -p '{"spec":{"state":"Paused"}}'`)
	f.awaits("autumn", "Paused")
	p.set(func() { p.hold = false })
	f.until("what ran has ended", func() bool { return f.status("autumn").Running == 0 })
	f.operator.settle()
	paused := len(p.of("autumn"))
	if s := f.status("autumn"); paused == f.clusters || running(p.of("autumn")) > 0 || s.Done != paused {
		t.Errorf("paused: %d were begun, status: %d done, %d run", paused, s.Done, s.Running)
	}
	f.typed(`kubectl patch fleetroll autumn --type=merge -p '{"spec":{"state":"Running"}}'`)
	f.typed("kubectl wait --for=condition=Ready fleetroll/autumn --timeout=24h")
	f.inSync(0)
	c := f.operator.settle().since(before).per(f.clusters)
	fmt.Fprintf(t.Output(), "%s\na roll by a FleetRoll: %s\n", f.typed("kubectl get fleetroll autumn"), c)

	list := p.of("autumn")
	var last, first time.Time // of the canaries, of the others
	for i, r := range list {
		if i < sites && r.ended.After(last) {
			last = r.ended
		} else if i >= sites && (first.IsZero() || r.began.Before(first)) {
			first = r.began
		}
	}
	if pause := first.Sub(last); pause < soak-time.Second { // ends are kept in whole seconds
		t.Errorf("the next stage began %s after the canaries, want %s", pause, soak)
	}
	if s := f.status("autumn"); len(list) != f.clusters || s.Done != f.clusters || s.Failed != 0 {
		t.Errorf("%d rolls of %d clusters, %d done, %d failed", len(list), f.clusters, s.Done, s.Failed)
	}
	most := p.mostAtATime()
	if most[""] != atATime {
		t.Errorf("%d clusters were rolled at a time, want %d", most[""], atATime)
	}
	for site, n := range most {
		if site != "" && n > perSite {
			t.Errorf("%d clusters of %s were rolled at a time, want at most %d", n, site, perSite)
		}
	}
}

// threshold: two failed clusters of the second stage stop it, and the third one never begins.
func (f *fleet) threshold() {
	t, p := f.t, f.player
	f.apply(`
apiVersion: recast.dev/v1alpha1
kind: FleetRoll
metadata: {name: winter}
spec:
  talosVersion: v1.13.10
  maxConcurrent: 4
  maxConcurrentPerSite: 2
  abortThreshold: 2
  stages:
    - {name: canaries, selector: {matchLabels: {ring: canary}}}
    - {name: early, selector: {matchLabels: {ring: early}}, approval: Manual}
    - {name: all, selector: {}}
`)
	f.awaits("winter", "AwaitingApproval")
	p.set(func() { p.hold, p.refuses["c0011"], p.refuses["c0012"] = true, true, true })
	f.kubectl(`patch fleetroll winter --type=merge -p '{"spec":{"approvedStages":["early"]}}'`)
	f.awaits("winter", "AbortThreshold")
	p.set(func() { p.hold = false })
	f.kubectl("wait --for=condition=Progressing=False fleetroll/winter --timeout=10m")
	f.operator.settle()
	message := f.ready("fleetroll/winter")
	fmt.Fprintf(t.Output(), "%s\n", message)
	if !strings.Contains(message, "c0011, c0012") {
		t.Errorf("it does not name those that failed")
	}
	begun := map[string]int{}
	for _, m := range f.status("winter").Members {
		if m.Phase != "Waiting" {
			begun[m.Stage]++
		}
	}
	// Four ran, and one more may have begun between the two failures.
	if begun["canaries"] != sites || begun["early"] < 4 || begun["early"] > 5 || begun["all"] != 0 {
		t.Errorf("begun by stage: %v", begun)
	}
	if s := f.status("winter"); s.Failed != 2 || s.Running != 0 || s.Done != begun["canaries"]+begun["early"]-2 || len(p.of("winter")) != begun["canaries"]+begun["early"] {
		t.Errorf("%d done, %d failed, %d run, %d rolls", s.Done, s.Failed, s.Running, len(p.of("winter")))
	}
}
