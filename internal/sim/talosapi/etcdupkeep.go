package talosapi

import (
	"context"
	"fmt"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/recast-sh/recast/internal/sim/etcd"
)

// EtcdAlarmDisarm implements the API: it disarms all alarms of all members.
func (s *machineService) EtcdAlarmDisarm(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdAlarmDisarmResponse, error) {
	all, err := s.alarms(ctx, "etcd alarm disarm", "disarm etcd alarm", func(c *etcd.Cluster, a etcd.Alarm) { c.Alarm(a, false) })
	if err != nil {
		return nil, err
	}
	return &machineapi.EtcdAlarmDisarmResponse{Messages: []*machineapi.EtcdAlarmDisarm{{MemberAlarms: all}}}, nil
}

// alarms are those of all members, as one of them lists them; each is called with every one.
func (s *machineService) alarms(ctx context.Context, api, verb string, each func(*etcd.Cluster, etcd.Alarm)) ([]*machineapi.EtcdMemberAlarm, error) {
	c, id, err := s.local(ctx, api)
	if err != nil {
		return nil, err
	}
	err = etcd.ErrNotForLearner
	if !c.Status(id).Learner {
		err = c.Linearizable(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to %s: %w", verb, err)
	}
	var all []*machineapi.EtcdMemberAlarm
	for _, a := range c.Status(id).Alarms {
		each(c, a)
		all = append(all, &machineapi.EtcdMemberAlarm{MemberId: a.Member, Alarm: machineapi.EtcdMemberAlarm_AlarmType(a.Kind)})
	}
	return all, nil
}

// EtcdDefragment implements the API. The lab's databases are never fragmented.
func (s *machineService) EtcdDefragment(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdDefragmentResponse, error) {
	if _, _, err := s.local(ctx, "etcd defragment"); err != nil {
		return nil, err
	}
	return &machineapi.EtcdDefragmentResponse{Messages: []*machineapi.EtcdDefragment{{}}}, nil
}
