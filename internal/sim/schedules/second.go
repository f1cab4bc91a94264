package schedules

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/sim/simtest"
)

// otherRange is proxmox.vmids of another recast.yaml.
const otherRange = "9200-9299"

// second is a second recast at the same time, on another machine.
func (p *play) second() {
	if c := p.another(""); c != nil {
		_, err := c.Roll(p.ctx, p.policy())
		p.tell("second: %s", said(err))
	}
}

// twin is a second recast with another recast.yaml of the same cluster, with other
// proxmox.vmids. While the first one works, it must not reach its confirmation; otherwise
// it answers no.
func (p *play) twin() {
	c := p.another(otherRange)
	if c == nil {
		return
	}
	c.Confirm = func(planning.Plan) (bool, error) {
		if p.heldMeanwhile() != "" {
			sleep(p.ctx, beats)
		}
		if claim := p.heldMeanwhile(); claim != "" && !strings.Contains(claim, `"beat":0,`) {
			p.fail("a second recast.yaml with other proxmox.vmids may begin while the claim of the first is held: %s", claim)
		}
		return false, nil
	}
	_, err := c.Roll(p.ctx, p.policy())
	p.tell("twin: %s", said(err))
}

// beats is enough time for the counter of a claim to change. It does not change while its
// run waits for other claims.
const beats = 45 * time.Second

// another is a recast on another machine with a copy of the lab's files; nil if the first
// one was just writing them.
func (p *play) another(vmids string) *simtest.Client {
	c, err := p.lab.WithRange(filepath.Join(p.t.TempDir(), "other"), vmids)
	if err != nil {
		p.tell("another recast: %v", err)
		return nil
	}
	c.Elsewhere = true
	return c
}

// heldMeanwhile is the claim of the first process, if it runs and has one; else "".
func (p *play) heldMeanwhile() string {
	p.mu.Lock()
	life := p.current
	alive := life != nil && !life.dead
	p.mu.Unlock()
	if !alive {
		return ""
	}
	for _, vm := range p.lab.World.VMs() {
		if survey.IsClaim(cluster.VM{Config: vm.Config}) && strings.Contains(vm.Config["description"], life.client.Run) {
			return vm.Config["description"]
		}
	}
	return ""
}
