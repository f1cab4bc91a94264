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
	c, id, err := s.local(ctx, "etcd alarm disarm")
	if err != nil {
		return nil, err
	}
	err = etcd.ErrNotForLearner
	if !c.Status(id).Learner {
		err = c.Linearizable(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to disarm etcd alarm: %w", err)
	}
	answer := &machineapi.EtcdAlarmDisarm{}
	for _, a := range c.Status(id).Alarms {
		c.Alarm(a, false)
		answer.MemberAlarms = append(answer.MemberAlarms, &machineapi.EtcdMemberAlarm{MemberId: a.Member, Alarm: machineapi.EtcdMemberAlarm_AlarmType(a.Kind)})
	}
	return &machineapi.EtcdAlarmDisarmResponse{Messages: []*machineapi.EtcdAlarmDisarm{answer}}, nil
}

// EtcdDefragment implements the API. The lab's databases are never fragmented.
func (s *machineService) EtcdDefragment(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdDefragmentResponse, error) {
	if _, _, err := s.local(ctx, "etcd defragment"); err != nil {
		return nil, err
	}
	return &machineapi.EtcdDefragmentResponse{Messages: []*machineapi.EtcdDefragment{{}}}, nil
}
