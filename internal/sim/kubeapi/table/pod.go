package table

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pod(o *corev1.Pod) []cell {
	status, spec := o.Status.SwaggerDoc(), o.Spec.SwaggerDoc()
	s := look(o)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.restarted.IsZero() {
		restarts += " (" + since(s.restarted) + " ago)"
	}
	ip := o.Status.PodIP
	if len(o.Status.PodIPs) > 0 {
		ip = o.Status.PodIPs[0].IP
	}
	return []cell{
		name(o), text("Ready", "The aggregate readiness state of this pod for accepting traffic.", fmt.Sprintf("%d/%d", s.ready, s.containers)),
		text("Status", "The aggregate status of the containers in this pod.", s.reason),
		text("Restarts", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.", restarts),
		age(o), wide("IP", status["podIP"], cmp.Or(ip, "<none>")), wide("Node", spec["nodeName"], cmp.Or(o.Spec.NodeName, "<none>")),
		wide("Nominated Node", status["nominatedNodeName"], cmp.Or(o.Status.NominatedNodeName, "<none>")), wide("Readiness Gates", spec["readinessGates"], gates(o)),
	}
}

// completed returns the condition of a row whose pod has ended.
func completed(o *corev1.Pod) []metav1.TableRowCondition {
	message := ""
	switch o.Status.Phase {
	case corev1.PodSucceeded:
		message = "The pod has completed successfully."
	case corev1.PodFailed:
		message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(o.Status.Phase), Message: message}}
}

func gates(o *corev1.Pod) string {
	if len(o.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	open := 0
	for _, g := range o.Spec.ReadinessGates {
		if hasCondition(o, g.ConditionType) {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(o.Spec.ReadinessGates))
}

func hasCondition(o *corev1.Pod, t corev1.PodConditionType) bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t && c.Status == corev1.ConditionTrue })
}

// seen is the sum of the states of a pod's containers.
type seen struct {
	reason            string
	ready, containers int
	restarts          int
	restarted         metav1.Time // last
}

func look(o *corev1.Pod) seen {
	s := seen{reason: cmp.Or(o.Status.Reason, string(o.Status.Phase)), containers: len(o.Spec.Containers)}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.reason = corev1.PodReasonSchedulingGated
		}
	}
	if sidecars, initialized := s.initContainers(o); initialized || hasCondition(o, corev1.PodInitialized) {
		s.restarts, s.restarted = sidecars.restarts, sidecars.restarted
		s.mainContainers(o)
	}
	switch {
	case o.DeletionTimestamp == nil:
	case o.Status.Reason == "NodeLost":
		s.reason = "Unknown"
	case o.Status.Phase != corev1.PodFailed && o.Status.Phase != corev1.PodSucceeded:
		s.reason = "Terminating"
	}
	return s
}

func (s *seen) count(c corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if ended := c.LastTerminationState.Terminated; ended != nil && s.restarted.Before(&ended.FinishedAt) {
		s.restarted = ended.FinishedAt
	}
}

// initContainers returns the restarts of sidecars, and whether all others have ended well.
func (s *seen) initContainers(o *corev1.Pod) (sidecars seen, initialized bool) {
	restartable := map[string]bool{}
	for _, c := range o.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			restartable[c.Name] = true
			s.containers++
		}
	}
	for i, c := range o.Status.InitContainerStatuses {
		s.count(c)
		if restartable[c.Name] {
			sidecars.count(c)
		}
		switch ended, waits := c.State.Terminated, c.State.Waiting; {
		case ended != nil && ended.ExitCode == 0:
			continue
		case restartable[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case ended != nil:
			s.reason = "Init:" + endOf(ended)
		case waits != nil && waits.Reason != "" && waits.Reason != "PodInitializing":
			s.reason = "Init:" + waits.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(o.Spec.InitContainers))
		}
		return sidecars, false
	}
	return sidecars, true
}

func (s *seen) mainContainers(o *corev1.Pod) {
	running, failure := false, ""
	for _, c := range slices.Backward(o.Status.ContainerStatuses) {
		s.count(c)
		switch ended := c.State.Terminated; {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case ended != nil:
			s.reason = endOf(ended)
			if ended.ExitCode != 0 {
				failure = s.reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	switch {
	case s.reason != "Completed":
	case running && hasCondition(o, corev1.PodReady):
		s.reason = "Running"
	case failure != "":
		s.reason = failure
	case running:
		s.reason = "NotReady"
	}
}

func endOf(ended *corev1.ContainerStateTerminated) string {
	switch {
	case ended.Reason != "":
		return ended.Reason
	case ended.Signal != 0:
		return fmt.Sprintf("Signal:%d", ended.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", ended.ExitCode)
}
