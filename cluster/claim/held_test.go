package claim

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestClaimLeavesOtherVMsAlone(t *testing.T) {
	t.Parallel()
	other := orphan(t, "r1")
	other.Config["description"] = strings.Replace(other.Config["description"], `"cluster":"c1"`, `"cluster":"c2"`, 1)
	broken := orphan(t, "r1")
	broken.Config["description"] = claimMark + `{"run":`
	newer := orphan(t, "r1")
	newer.Config["description"] = strings.Replace(newer.Config["description"], `"version":1`, `"version":2`, 1)
	edit := func(change func(*cluster.VM)) cluster.VM {
		vm := orphan(t, "r1")
		vm.Config["memory"], vm.Config["protection"] = "16", "1"
		change(&vm)
		return vm
	}
	type row struct {
		vm   cluster.VM
		want string
	}
	must.Bubbles(t, map[string]row{
		"a newer recast's claim":   {newer, `VM 9000 "recast-claim" on pve1: the claim in its description can't be read: a newer recast wrote it: its format is version 2, and this recast reads version 1`},
		"another cluster's claim":  {other, `VM 9000 "recast-claim" on pve1 is the claim of cluster c2, not of c1`},
		"with other Notes":         {edit(func(vm *cluster.VM) { vm.Config["description"] = "mine" }), `VM 9000 "recast-claim" on pve1 is a claim of recast, and someone has edited its Notes: which run holds it can't be read`},
		"with no Notes and name":   {edit(func(vm *cluster.VM) { vm.Name = "x"; delete(vm.Config, "description") }), `VM 9000 "x" on pve1 is a claim of recast, and someone has edited its Notes: which run holds it can't be read`},
		"with no Notes and a disk": {edit(func(vm *cluster.VM) { vm.Config["description"], vm.Config["scsi0"] = "", "fast:vm-9000-disk-0" }), `VM 9000 "recast-claim" on pve1 has the number that recast needs for its claim, and is none`},
		"a foreign VM":             {cluster.VM{ID: 9000, Name: "web", Host: "pve2"}, `VM 9000 "web" on pve2 has the number that recast needs for its claim, and is none`},
		"a damaged claim":          {broken, `VM 9000 "recast-claim" on pve1: the claim in its description can't be read: unexpected end of JSON input`},
	}, func(t *testing.T, tc row) {
		p := newClaimPVE(tc.vm)
		_, err := claimant(p, "r2").Acquire(t.Context())
		requireMessage(t, err, fault.Refused, "take the claim of cluster c1: "+tc.want)
		must.Equal(t, "hints", 1, len(fault.Hints(err)))
		requirePeek(t, []cluster.VM{tc.vm}, false, tc.want)
		must.Equal(t, "changed", 0, len(p.changes))
	})
	s, found, err := Peek([]cluster.VM{{ID: 8999}, orphan(t, "r1")}, "c1", 9000)
	must.Pass(t, err)
	must.Equal(t, "peeked", []any{true, "r1", cluster.VMID(9000)}, []any{found, s.Run, s.VM.ID})
	newer.ID = 8999
	_, found, err = Peek([]cluster.VM{newer}, "c1", 9000)
	must.Fail(t, err, "a newer recast wrote it")
	must.Equal(t, "a newer recast holds it, found", false, found)
	requirePeek(t, []cluster.VM{{ID: 8999}}, false, "")
}

func TestClaimIsNotDeletedBlindly(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(*claimPVE, *cluster.VM)
		want   string
	}
	must.Bubbles(t, map[string]row{
		"no quorum": {func(p *claimPVE, _ *cluster.VM) { p.noQuorum = true }, "the Proxmox cluster has no quorum"},
		"running":   {func(_ *claimPVE, vm *cluster.VM) { vm.Running = true }, "is not as recast made it"},
		"a drive":   {func(_ *claimPVE, vm *cluster.VM) { vm.Config["scsi0"] = "fast:vm-9000-disk-0" }, "is not as recast made it"},
	}, func(t *testing.T, tc row) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		p.do(func() {
			vm := p.vms[9000]
			tc.change(p, &vm)
			p.vms[9000] = vm
		})
		err := h.Release(t.Context())
		must.Contain(t, "message", clustertest.Message(err), tc.want)
		must.Equal(t, "VMs, deleted", []any{1, false}, []any{len(p.vms), slices.Contains(p.changes, "delete")})
	})
}

// TestClaimRenamed: a claim that someone has renamed is given back all the same, and the next heartbeat
// gives it its name again.
func TestClaimRenamed(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		rename := func() {
			p.do(func() {
				vm := p.vms[9000]
				vm.Name = "mine"
				p.vms[9000] = vm
			})
		}
		rename()
		time.Sleep(Heartbeat + time.Second)
		p.do(func() {
			must.Equal(t, "after a heartbeat its name is", VMName, p.vms[9000].Config["name"])
		})
		rename()
		releaseAll(t, p, h)
	})
}

func TestClaimEndsWithItsContext(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		ctx, cancel := context.WithCancel(t.Context())
		h := must.Get(claimant(p, "r1").Acquire(ctx))(t)
		cancel()
		time.Sleep(time.Minute)
		must.Equal(t, "changes after the context had ended", 1, len(p.changes))
		must.FailAs(t, h.Check(t.Context()), fault.Refused)
		must.FailIs(t, must.Err(claimant(p, "r2").Acquire(ctx)), context.Canceled)
		releaseAll(t, p, h)
	})
}

func TestClaimDeletedByAPerson(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		p.do(func() { delete(p.vms, 9000) })
		time.Sleep(time.Minute)
		want := "lost the claim of cluster c1: VM 9000 was deleted"
		requireMessage(t, h.Check(t.Context()), fault.Claimed, want)
		release(t, h)
		must.Equal(t, "changes", 1, len(p.changes))
	})
}

// Reflection finds the guarded methods, so a method that does not check fails here.
func TestGuardChecksBeforeEveryChange(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		px := h.Guard(p)
		must.Pass(t, px.CreateVM(t.Context(), "pve1", 9001, nil))
		must.Equal(t, "VMs", 2, len(p.vms))
		p.do(func() { delete(p.vms, 9000) }) // claimPVE panics on every call that it does not serve
		for _, of := range []reflect.Type{reflect.TypeFor[cluster.Editor](), reflect.TypeFor[cluster.HA](), reflect.TypeFor[cluster.Power]()} {
			for m := range of.Methods() {
				f := reflect.ValueOf(px).MethodByName(m.Name)
				args := []reflect.Value{reflect.ValueOf(t.Context())}
				for i := 1; i < f.Type().NumIn(); i++ {
					args = append(args, reflect.Zero(f.Type().In(i)))
				}
				out := f.Call(args)
				if err, _ := out[len(out)-1].Interface().(error); fault.KindOf(err) != fault.Claimed {
					t.Errorf("%s: %v", m.Name, err)
				}
			}
		}
		must.Pass(t, must.Err(px.VM(t.Context(), 9001))) // reading needs no claim
	})
}

// TestWriteEndsWithTheClaim: a change that is being sent ends when the claim is lost, and none is sent afterwards.
func TestWriteEndsWithTheClaim(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		sent := 0
		send := func(ctx context.Context) error {
			sent++
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Minute):
				return nil
			}
		}
		must.Pass(t, h.Write(t.Context(), send))
		must.Equal(t, "contexts left", 0, len(h.ends))
		time.AfterFunc(20*time.Second, func() { p.do(func() { delete(p.vms, 9000) }) })
		for range 2 {
			must.FailAs(t, h.Write(t.Context(), send), fault.Claimed)
			must.Equal(t, "sent", 2, sent)
		}
	})
}

// TestAfterASilenceHostsAreJudgedAlike: an unreachable host makes the holder of a claim refuse
// exactly when it makes a run refuse that takes a claim.
func TestAfterASilenceHostsAreJudgedAlike(t *testing.T) {
	t.Parallel()
	for why, refused := range map[string]bool{cluster.IsOffline: false, "does not answer": true} {
		synctest.Test(t, func(t *testing.T) {
			p := newClaimPVE()
			h := acquire(t, claimantAt(p, "r1", 9000))
			p.do(func() { p.down = true })
			time.Sleep(time.Minute)
			p.do(func() {
				p.down, p.away = false, &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve2", Why: why}}, VMs: []cluster.VM{{ID: 500, Host: "pve2"}}}
			})
			time.Sleep(20 * time.Second) // a heartbeat arrives
			start := time.Now()
			err := h.Check(t.Context())
			must.Equal(t, why, 90*time.Second, time.Since(start))
			if refused != (err != nil) || refused && fault.KindOf(err) != fault.Refused {
				t.Errorf("%s: %v", why, err)
			}
			release(t, h)
		})
	}
}
