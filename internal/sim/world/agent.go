package world

import (
	"strings"
	"time"
)

// AgentInterfaces asks a VM's guest agent for its network interfaces. Without an agent it
// times out.
func (w *World) AgentInterfaces(user, host string, id int) ([]Interface, error) {
	w.mu.Lock()
	err := w.check(user, vmPath(id), "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")
	v, missing := w.vmOn(host, id)
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if missing != nil {
		return nil, missing
	}
	w.mu.Lock()
	_, configured := v.config["agent"]
	running := v.proc != nil
	w.mu.Unlock()
	switch {
	case !configured:
		return nil, failf("No QEMU guest agent configured")
	case !running:
		return nil, failf("VM %d is not running", id)
	}
	list, ok := w.askAgent(id)
	if !ok {
		w.Delay(3 * time.Second)
		return nil, failf("QEMU guest agent is not running")
	}
	return list, nil
}

func (w *World) askAgent(id int) ([]Interface, bool) {
	if w.agent == nil {
		return nil, false
	}
	return w.agent(id)
}

// agentEnabled reads the agent option: "1", "enabled=1,fstrim_cloned_disks=1".
func agentEnabled(option string) bool {
	first, _, _ := strings.Cut(option, ",")
	on, ok := ParseBool(strings.TrimPrefix(first, "enabled="))
	return ok && on
}
