package table

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func configMap(o *corev1.ConfigMap) kind {
	return kind{
		columns(text("Data", o.SwaggerDoc()["data"]), age()),
		[]any{o.Name, int64(len(o.Data) + len(o.BinaryData)), since(o.CreationTimestamp)},
	}
}

func secret(o *corev1.Secret) kind {
	return kind{
		columns(text("Type", o.SwaggerDoc()["type"]), text("Data", o.SwaggerDoc()["data"]), age()),
		[]any{o.Name, string(cmp.Or(o.Type, corev1.SecretTypeOpaque)), int64(len(o.Data)), since(o.CreationTimestamp)},
	}
}

func namespace(o *corev1.Namespace) kind {
	return kind{
		columns(text("Status", "The status of the namespace"), age()),
		[]any{o.Name, string(o.Status.Phase), since(o.CreationTimestamp)},
	}
}

// event begins with another column than the others.
func event(o *corev1.Event) kind {
	docs, name := o.SwaggerDoc(), columns()[0]
	name.Priority = 1
	first := since(o.FirstTimestamp)
	if o.FirstTimestamp.IsZero() {
		first = since(metav1.Time(o.EventTime))
	}
	last := since(o.LastTimestamp)
	if o.LastTimestamp.IsZero() {
		last = first
	}
	count := cmp.Or(o.Count, 1)
	if o.Series != nil {
		last, count = since(metav1.Time(o.Series.LastObservedTime)), o.Series.Count
	}
	about := strings.ToLower(o.InvolvedObject.Kind)
	if o.InvolvedObject.Name != "" {
		about += "/" + o.InvolvedObject.Name
	}
	source := cmp.Or(o.Source.Component, o.ReportingController)
	if instance := cmp.Or(o.Source.Host, o.ReportingInstance); instance != "" {
		source += ", " + instance
	}
	return kind{
		[]metav1.TableColumnDefinition{
			text("Last Seen", docs["lastTimestamp"]), text("Type", docs["type"]), text("Reason", docs["reason"]), text("Object", docs["involvedObject"]),
			wide("Subobject", o.InvolvedObject.SwaggerDoc()["fieldPath"]), wide("Source", docs["source"]), text("Message", docs["message"]),
			wide("First Seen", docs["firstTimestamp"]), wide("Count", docs["count"]), name,
		},
		[]any{last, o.Type, o.Reason, about, o.InvolvedObject.FieldPath, source, strings.TrimSpace(o.Message), first, int64(count), o.Name},
	}
}

func node(o *corev1.Node) kind {
	info, docs := o.Status.NodeInfo, o.Status.NodeInfo.SwaggerDoc()
	status := "Unknown"
	for _, c := range o.Status.Conditions {
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
			status = "Ready"
		case c.Type == corev1.NodeReady:
			status = "NotReady"
		}
	}
	if o.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	kernel := cmp.Or(info.KernelVersion, "<unknown>")
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	addresses := o.Status.SwaggerDoc()["addresses"]
	return kind{
		columns(
			text("Status", "The status of the node"), text("Roles", "The roles of the node"), age(), text("Version", docs["kubeletVersion"]),
			wide("Internal-IP", addresses), wide("External-IP", addresses), wide("OS-Image", docs["osImage"]),
			wide("Kernel-Version", docs["kernelVersion"]), wide("Container-Runtime", docs["containerRuntimeVersion"]),
		),
		[]any{
			o.Name, status, cmp.Or(strings.Join(roles(o), ","), "<none>"), since(o.CreationTimestamp), info.KubeletVersion,
			address(o, corev1.NodeInternalIP), address(o, corev1.NodeExternalIP), cmp.Or(info.OSImage, "<unknown>"),
			kernel, cmp.Or(info.ContainerRuntimeVersion, "<unknown>"),
		},
	}
}

func roles(o *corev1.Node) []string {
	found := map[string]bool{}
	for label, value := range o.Labels {
		role, named := strings.CutPrefix(label, "node-role.kubernetes.io/")
		if label == "kubernetes.io/role" {
			role, named = value, true
		}
		if named && role != "" {
			found[role] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func address(o *corev1.Node, t corev1.NodeAddressType) string {
	for _, a := range o.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return "<none>"
}

// service shows what the real server sets as defaults, which the lab does not store.
func service(o *corev1.Service) kind {
	docs := o.Spec.SwaggerDoc()
	ip := o.Spec.ClusterIP
	if len(o.Spec.ClusterIPs) > 0 {
		ip = o.Spec.ClusterIPs[0]
	}
	var ports []string
	for _, p := range o.Spec.Ports {
		number := fmt.Sprint(p.Port)
		if p.NodePort > 0 {
			number += fmt.Sprintf(":%d", p.NodePort)
		}
		ports = append(ports, number+"/"+string(cmp.Or(p.Protocol, corev1.ProtocolTCP)))
	}
	return kind{
		columns(
			text("Type", docs["type"]), text("Cluster-IP", docs["clusterIP"]), text("External-IP", docs["externalIPs"]), text("Port(s)", docs["ports"]), age(),
			wide("Selector", docs["selector"]),
		),
		[]any{
			o.Name, string(cmp.Or(o.Spec.Type, corev1.ServiceTypeClusterIP)), cmp.Or(ip, "<none>"), externalIP(o), cmp.Or(strings.Join(ports, ","), "<none>"),
			since(o.CreationTimestamp), labels.FormatLabels(o.Spec.Selector),
		},
	}
}

func externalIP(o *corev1.Service) string {
	given := strings.Join(o.Spec.ExternalIPs, ",")
	switch o.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return o.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		found := map[string]bool{}
		for _, i := range o.Status.LoadBalancer.Ingress {
			found[cmp.Or(i.IP, i.Hostname)] = true
		}
		delete(found, "")
		all := append(slices.Sorted(maps.Keys(found)), o.Spec.ExternalIPs...)
		return cmp.Or(strings.Join(all, ","), "<pending>")
	}
	return cmp.Or(given, "<none>")
}

func pod(o *corev1.Pod) kind {
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
	return kind{
		columns(
			text("Ready", "The aggregate readiness state of this pod for accepting traffic."), text("Status", "The aggregate status of the containers in this pod."),
			text("Restarts", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."), age(),
			wide("IP", status["podIP"]), wide("Node", spec["nodeName"]), wide("Nominated Node", status["nominatedNodeName"]), wide("Readiness Gates", spec["readinessGates"]),
		),
		[]any{
			o.Name, fmt.Sprintf("%d/%d", s.ready, s.containers), s.reason, restarts, since(o.CreationTimestamp),
			cmp.Or(ip, "<none>"), cmp.Or(o.Spec.NodeName, "<none>"), cmp.Or(o.Status.NominatedNodeName, "<none>"), gates(o),
		},
	}
}

// completed is the condition of a row whose pod has ended.
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

// seen is what the containers of a pod add up to.
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
