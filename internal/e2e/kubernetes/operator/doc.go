// Package operator tests recast-operator, as it is installed, with a real Kubernetes control plane and
// real kubelets: the operator and its Jobs are the built programs, as processes; Proxmox and Talos are the lab's.
package operator
