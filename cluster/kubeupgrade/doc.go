// Package kubeupgrade brings Kubernetes itself to a version, one component of one
// control plane after the other, then the kubelets. [Observe] says what runs,
// [NewPlan] what is to be done, and [Upgrade] has the steps that do it; a run
// that was killed is gone on with by the next one, which sees what is done.
package kubeupgrade
