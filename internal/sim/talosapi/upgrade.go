package talosapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/internal/sim/etcd"
)

// drainTimeout is Talos' own timeout for draining a node.
const drainTimeout = 5 * time.Minute

// legacyRetries is how often Talos itself retries a missing image.
const legacyRetries = 5

// upgrade is an upgrade that MachineService.Upgrade has accepted.
type upgrade struct {
	image imageName
	then  outcome // kexec or powerCycle
}

// Upgrade implements the API: it pulls the image, checks etcd and answers; then the
// machine drains, installs and reboots by itself.
func (s *machineService) Upgrade(ctx context.Context, req *machineapi.UpgradeRequest) (*machineapi.UpgradeResponse, error) {
	b := s.boot
	name := systemContainerd
	name.ref = req.GetImage()
	name, err := b.pull(ctx, name, legacyRetries, func(cachedImage, float64) {})
	if err != nil {
		return nil, fmt.Errorf("error validating installer image %q: %w", req.GetImage(), err)
	}
	if err := b.checkEtcd(ctx, req); err != nil {
		return nil, err
	}
	then, actor := kexec, ""
	if req.GetRebootMode() == machineapi.UpgradeRequest_POWERCYCLE {
		then = powerCycle
	}
	if req.GetStage() {
		d, ok := systemDisk(b.m.devices())
		if !ok {
			return nil, errors.New("error adding staged upgrade image ref tag: META is missing")
		}
		if err := b.m.editMeta(d.Key, func(meta *metaData) { meta.Staged = req.GetImage() }); err != nil {
			return nil, fmt.Errorf("error adding staged upgrade image ref tag: %w", err)
		}
		actor = b.order(then)
	} else {
		b.mu.Lock()
		b.upgrade = upgrade{image: name, then: then}
		b.mu.Unlock()
		actor = b.order(upgrading)
	}
	return &machineapi.UpgradeResponse{Messages: []*machineapi.Upgrade{{Ack: "Upgrade request received", ActorId: actor}}}, nil
}

// checkEtcd refuses to take a control plane down unless every member of etcd is up. Before
// 1.13 preserve does not skip the check (v1alpha1_server.go, Upgrade).
func (b *boot) checkEtcd(ctx context.Context, req *machineapi.UpgradeRequest) error {
	if req.GetForce() || req.GetPreserve() && b.release().lifecycle || !b.config().Machine().Type().IsControlPlane() {
		return nil
	}
	c, err := b.reachEtcd(ctx)
	if err == nil {
		err = b.membersUp(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("error validating etcd for upgrade: %w", err)
	}
	return nil
}

// membersUp is ValidateForUpgrade in Talos' internal/pkg/etcd.
func (b *boot) membersUp(ctx context.Context, c *etcd.Cluster) error {
	members, err := c.Members(ctx)
	if err != nil {
		return err
	}
	if len(members) == 2 {
		return fmt.Errorf("etcd member count(%d) is insufficient to maintain quorum if upgrade commences", len(members))
	}
	for _, m := range members {
		if m.Name == "" {
			return fmt.Errorf("etcd member %016x is not started, all members must be running to perform an upgrade", m.ID)
		}
		if err := b.memberHealth(ctx, c, m); err != nil {
			return fmt.Errorf("etcd member %016x is not healthy; all members must be healthy to perform an upgrade: %w", m.ID, err)
		}
	}
	return nil
}

// memberHealth reads one key from one member, which also needs a quorum.
func (b *boot) memberHealth(ctx context.Context, c *etcd.Cluster, m etcd.Member) error {
	switch {
	case m.Learner:
		return etcd.ErrNotForLearner
	case !c.Answers(m.ID):
		if !b.m.fw.sleep(ctx, healthTimeout) {
			return ctx.Err()
		}
		return context.DeadlineExceeded
	}
	return c.Linearizable(ctx)
}

// runUpgrade is the sequence of an upgrade that the machine runs itself. Like any fatal
// error, a failure reboots it.
func (b *boot) runUpgrade(ctx context.Context) outcome {
	b.mu.Lock()
	u := b.upgrade
	b.mu.Unlock()
	b.begin("upgrade", b.release().upgrading(u.then))
	if err := b.stage(ctx, runtime.MachineStageUpgrading, true); err != nil {
		return killed
	}
	b.seq.to("drain")
	b.empty(ctx)
	b.gone()
	b.seq.to("stopServices")
	b.etcdService().stop(errOrderly)
	b.seq.to("upgrade")
	c, ok := b.m.cached(u.image)
	if !ok {
		return b.sequenceFailed(ctx, fmt.Errorf("image %q: not found", u.image.ref))
	}
	if err := b.upgradeDisk(ctx, c, b.grubCmdline(c.image), func(line string) { b.m.console("%s", line) }); err != nil {
		return b.sequenceFailed(ctx, err)
	}
	return u.then
}

// empty cordons the node and evicts its pods, with a timeout.
func (b *boot) empty(ctx context.Context) {
	b.mu.Lock()
	node := b.node
	b.mu.Unlock()
	if node == "" || b.m.fw.o.Drain == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, b.m.fw.scaled(drainTimeout))
	defer cancel()
	if err := b.m.fw.o.Drain(ctx, node); err != nil {
		b.m.console("WARNING: failed to evict pod: %v", err)
	}
}

func (b *boot) sequenceFailed(ctx context.Context, err error) outcome {
	if ctx.Err() != nil {
		return killed
	}
	name := b.seq.name
	return b.fatal(ctx, fmt.Sprintf("fatal sequencer error in %q sequence: code:FATAL message:%q", name, "sequence failed: "+b.seq.fail(err).Error()))
}

// runStaged runs the upgrade that was staged for this boot, if any, with a single attempt.
func (b *boot) runStaged(ctx context.Context) outcome {
	d, _ := systemDisk(b.m.devices())
	name := systemContainerd
	if name.ref = readMeta(d).Staged; name.ref == "" || b.med.entry == "" {
		b.sequence("", "install", nil)
		b.seq.end()
		return carryOn
	}
	b.sequence("", "install", b.release().phases(installPhases))
	b.seq.to("install")
	b.ending = true
	if err := b.m.editMeta(d.Key, func(meta *metaData) { meta.Staged = "" }); err != nil {
		return b.sequenceFailed(ctx, err)
	}
	name, err := b.pull(ctx, name, legacyRetries, func(cachedImage, float64) {})
	if err != nil {
		return b.sequenceFailed(ctx, err)
	}
	c, _ := b.m.cached(name)
	if err := b.upgradeDisk(ctx, c, b.grubCmdline(c.image), func(line string) { b.m.console("%s", line) }); err != nil {
		return b.sequenceFailed(ctx, err)
	}
	return kexec
}

// uncordon uncordons the node if Talos has cordoned it.
func (b *boot) uncordon(ctx context.Context) {
	b.mu.Lock()
	node := b.node
	b.mu.Unlock()
	if node == "" || b.m.fw.o.Uncordon == nil {
		return
	}
	if err := b.m.fw.o.Uncordon(ctx, node); err != nil && ctx.Err() == nil {
		b.m.console("uncordon: %v", err)
	}
}
