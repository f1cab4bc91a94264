package images

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
)

func isoOf(build string) string { return "recast-v1.13.9-" + build + "-nocloud-amd64.iso" }

const (
	buildA = "aaaaaaaaaaaa"
	buildB = "bbbbbbbbbbbb"
	week   = 168 * time.Hour
)

func TestJudgeISOs(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	old := now.Add(-week)
	a := StoredISO{Host: "pve1", Storage: "local", Name: isoOf(buildA), Changed: old}
	type row struct {
		iso  StoredISO
		uses []Use
		need Needed
		age  time.Duration
		want []string
	}
	must.Each(t, map[string]row{
		"nothing needs it": {iso: a, age: week},
		"a VM": {iso: a, uses: []Use{
			{By: "VM 1", Values: []string{"local:iso/" + isoOf(buildB)}}, {By: "VM 2", Values: []string{"none,media=cdrom", "local:iso/" + isoOf(buildA) + ",media=cdrom"}},
		}, want: []string{"VM 2 refers to it"}},
		"on another storage, which may be the same directory": {
			iso: a, uses: []Use{{By: "VM 1", Values: []string{"nas:iso/" + isoOf(buildA)}}}, want: []string{"VM 1 refers to it"},
		},
		"by its path": {
			iso: a, uses: []Use{{By: "VM 1", Values: []string{"-cdrom /var/lib/vz/template/iso/" + isoOf(buildA)}}}, want: []string{"VM 1 refers to it"},
		},
		"the lock":        {iso: a, need: Needed{Names: map[string]string{isoOf(buildA): "recast.lock has it"}}, want: []string{"recast.lock has it"}},
		"another build":   {iso: a, need: Needed{Builds: map[string]string{buildB + "00": "wk1 was made from it"}}},
		"builds":          {iso: a, need: Needed{Builds: map[string]string{buildA + "01": "y", buildA + "00": "x"}}, want: []string{"x", "y"}},
		"young":           {iso: a, age: week + time.Minute, want: []string{"it is younger than 168h1m"}},
		"of the future":   {iso: StoredISO{Name: isoOf(buildA), Changed: now.Add(time.Hour)}, age: time.Hour, want: []string{"it is younger than 1h"}},
		"of no known age": {iso: StoredISO{Name: isoOf(buildA)}, age: week, want: []string{"its age is unknown (--older-than 0 ignores age)"}},
		"age is no matter": {
			iso: StoredISO{Name: isoOf(buildA)},
		},
		"not ours": {iso: StoredISO{Name: "debian.iso", Changed: old}, age: week, want: []string{"it is not one of ours"}},
	}, func(t *testing.T, tc row) {
		got := JudgeISOs([]StoredISO{tc.iso}, tc.uses, tc.need, tc.age, now)
		must.Equal(t, "result", []Verdict{{StoredISO: tc.iso, Keep: tc.want}}, got)
	})
}

func TestOurISO(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"recast-v1.13.9-0123456789ab-nocloud-amd64.iso":          true,
		"recast-v1.14.0-alpha.1-0123456789ab-metal-arm64.iso":    true,
		"recast-v1.13.9-0123456789ab-nocloud-amd64.iso.img":      false,
		"my-recast-v1.13.9-0123456789ab-nocloud-amd64.iso":       false,
		"recast-v1.13.9-0123456789abcd-nocloud-amd64.iso":        false,
		"recast-v1.13.9-0123456789ab-nocloud-amd64-extra.iso":    false,
		"recast-v1.13-0123456789ab-nocloud-amd64.iso":            false,
		"recast-v1.13.9-0123456789AB-nocloud-amd64.iso":          false,
		"recast-contract-1-0123456789ab-nocloud-amd64.iso":       false,
		"recast-v1.13.9-0123456789ab-nocloud-amd64.iso.tmp_dwnl": false,
	} {
		must.Equal(t, name, want, ourISO.MatchString(name))
	}
	b := newBench(t)
	for name, e := range b.saved.Schematics {
		if m := ourISO.FindStringSubmatch(e.ISO.Name); m == nil || !strings.HasPrefix(e.BuildID, m[1]) {
			t.Errorf("schematic %s: %s is not recognised as ours", name, e.ISO.Name)
		}
	}
}

// shelf has ISOs of two builds on a shared storage, on a local one of pve1, and on one that only pve2 has.
func shelf() *store {
	s := newStore()
	for _, at := range []string{"pve1/cephfs", "pve1/local", "pve2/local"} {
		for _, name := range []string{isoOf(buildA), isoOf(buildB), "debian.iso"} {
			s.storages[at].isos[name] = []byte("iso")
		}
	}
	delete(s.storages["pve1/local"].isos, isoOf(buildB))
	return s
}

func TestListISOs(t *testing.T) {
	t.Parallel()
	s := shelf()
	delete(s.storages, "pve1/local")
	s.storages["pve3/local"] = &storage{StorageInfo: StorageInfo{Content: []string{"iso"}}}
	s.offline = []string{"pve4"}
	got, unseen, err := ListISOs(t.Context(), s, BootISO, []string{"cephfs", "local"})
	must.Do(t, err)
	want := []StoredISO{
		{Host: "pve1", Storage: "cephfs", Shared: true, Name: isoOf(buildA), SizeBytes: 3},
		{Host: "pve1", Storage: "cephfs", Shared: true, Name: isoOf(buildB), SizeBytes: 3},
		{Host: "pve2", Storage: "local", Name: isoOf(buildA), SizeBytes: 3},
		{Host: "pve2", Storage: "local", Name: isoOf(buildB), SizeBytes: 3},
	}
	must.Equal(t, "ISOs", want, got)
	if diff := cmp.Diff([]string{
		"pve4 is offline: its own storages were not checked", "storage local is not active on pve3: it was not checked there",
	}, unseen); diff != "" {
		t.Errorf("unseen (-want +got):\n%s", diff)
	}
	s.fail = errors.New("500")
	if _, _, err := ListISOs(t.Context(), s, BootISO, []string{"cephfs"}); !errors.Is(err, s.fail) {
		t.Errorf("error is %v", err)
	}
}

func TestPruner(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(s *store, guard *error)
		want   []string
		fails  string
		kind   fault.Kind
	}
	must.Each(t, map[string]row{
		"all that can go": {want: []string{"delete " + isoOf(buildA) + " on storage cephfs", "delete " + isoOf(buildA) + " on storage local on pve1"}},
		"one is used by now": {
			change: func(s *store, _ *error) {
				s.uses = []Use{{By: "VM 7", Values: []string{"cephfs:iso/" + isoOf(buildA)}}}
			}, fails: "is in use by VM 7 now: it stays", kind: fault.Refused,
		},
		"use is no longer known": {
			change: func(s *store, _ *error) { s.blind = fault.Refusedf("the token sees half") }, fails: "the token sees half", kind: fault.Refused,
		},
		"the claim is lost": {
			change: func(_ *store, guard *error) { *guard = fault.As(fault.Claimed, errors.New("lost the claim")) }, fails: "lost the claim", kind: fault.Claimed,
		},
		"one is gone": {
			change: func(s *store, _ *error) { delete(s.storages["pve1/cephfs"].isos, isoOf(buildA)) },
			want:   []string{"delete " + isoOf(buildA) + " on storage local on pve1"},
		},
	}, func(t *testing.T, tc row) {
		s := shelf()
		isos, _, err := ListISOs(t.Context(), s, BootISO, []string{"cephfs", "local"})
		must.Do(t, err)
		need := Needed{Builds: map[string]string{buildB: "wk1 was made from it"}}
		p := Pruner{Shelf: s, Verdicts: JudgeISOs(isos, nil, need, 0, time.Now())}
		p.Verdicts = p.Verdicts[:3] // pve2 has the same as pve1
		var guard error
		if tc.change != nil {
			tc.change(s, &guard)
		}
		p.Write = unless(&guard)
		prune(t, p.Steps(), tc.fails, tc.kind)
		must.Equal(t, "changes", tc.want, s.changes)
		for _, v := range p.Verdicts {
			if _, there := s.storages[v.Host+"/"+v.Storage].isos[v.Name]; v.Removed == there {
				t.Errorf("%s: removed is %t", v, v.Removed)
			}
		}
	})
}

// prune runs steps, and requires an error of that kind with that text, or none without a text.
func prune(t *testing.T, steps []step.Step, fails string, kind fault.Kind) {
	t.Helper()
	err := newBench(t).run(t, step.Step{ID: "prune", Title: "remove", Steps: func(context.Context) ([]step.Step, error) { return steps, nil }})
	if err != nil != (fails != "") || !strings.Contains(message(err), fails) || fault.KindOf(err) != kind {
		t.Errorf("error is %v (%v), want %q in it", err, fault.KindOf(err), fails)
	}
}

// unless sends changes while *guard is nil.
func unless(guard *error) Write {
	return func(ctx context.Context, send func(context.Context) error) error {
		if *guard != nil {
			return *guard
		}
		return send(ctx)
	}
}
