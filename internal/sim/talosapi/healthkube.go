package talosapi

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
)

// kubeObjects is the part of a list of Kubernetes' nodes or pods that the checks read.
type kubeObjects struct {
	Items []struct {
		Metadata struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Unschedulable bool `json:"unschedulable"`
		} `json:"spec"`
		Status struct {
			Conditions []struct{ Type, Status string }  `json:"conditions"`
			Addresses  []struct{ Type, Address string } `json:"addresses"`
		} `json:"status"`
	} `json:"items"`
}

// unready are the names of those that are not Ready.
func (o kubeObjects) unready() []string {
	var names []string
	for _, i := range o.Items {
		for _, c := range i.Status.Conditions {
			if c.Type == "Ready" && c.Status != "True" {
				names = append(names, i.Metadata.Name)
			}
		}
	}
	return names
}

// kubernetes requests a list from the cluster's API server, as an administrator.
func (b *boot) kubernetes(ctx context.Context, path string) (list kubeObjects, err error) {
	cfg := b.config()
	ca := cfg.K8sAPIServerCAConfig().IssuingCA()
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return list, fmt.Errorf("error getting Kubernetes CA: %w", err)
	}
	pair, err := x509.NewKeyPair(authority, x509.CommonName("talos:health"), x509.Organization(cfg.Cluster().AdminKubeconfig().CertOrganization()),
		x509.NotBefore(time.Now().Add(-allowedTimeSkew)), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	if err != nil {
		return list, fmt.Errorf("error generating Kubernetes client certificate: %w", err)
	}
	roots := stdx509.NewCertPool()
	roots.AddCert(authority.Crt)
	transport := &http.Transport{
		DialContext: b.m.fw.o.Network.Dialer().DialContext, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*pair.Certificate}, RootCAs: roots},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.K8sClusterConfig().ClusterEndpoint().String()+path, nil)
	if err != nil {
		return list, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return list, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return list, fmt.Errorf("%s: %s", path, resp.Status)
	}
	return list, json.NewDecoder(resp.Body).Decode(&list)
}

// nodesReport requires that Kubernetes' nodes are exactly the machines.
func (b *boot) nodesReport(nodes []cluster.AffiliateSpec) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := b.kubernetes(ctx, "/api/v1/nodes")
		if err != nil {
			return err
		}
		var there []string
		for _, i := range list.Items {
			for _, a := range i.Status.Addresses {
				if a.Type == "InternalIP" {
					there = append(there, a.Address)
				}
			}
		}
		for _, addr := range addresses(nodes) {
			if !slices.Contains(there, addr) {
				return fmt.Errorf("can't find expected node with IPs [%q]", addr)
			}
		}
		for _, addr := range there {
			if !slices.Contains(addresses(nodes), addr) {
				return fmt.Errorf("unexpected nodes with IPs [%q]", addr)
			}
		}
		return nil
	}
}

func (e *examination) kubernetesChecks() []check {
	b := e.proxy.boot
	return []check{
		{"all control plane components to be ready", func(ctx context.Context) error {
			for _, app := range []string{"kube-apiserver", "kube-scheduler", "kube-controller-manager"} {
				if err := b.podsReady(ctx, app, len(e.controlPlanes())); err != nil {
					return err
				}
			}
			return nil
		}},
		{"all k8s nodes to report ready", func(ctx context.Context) error {
			list, err := b.kubernetes(ctx, "/api/v1/nodes")
			if names := list.unready(); err == nil && len(names) > 0 {
				err = fmt.Errorf("some nodes are not ready: %v", names)
			}
			return err
		}},
		{"kube-proxy to report ready", b.workloadReady("daemonsets", "kube-proxy")},
		{"coredns to report ready", b.workloadReady("deployments", "kube-dns")},
		{"all k8s nodes to report schedulable", func(ctx context.Context) error {
			list, err := b.kubernetes(ctx, "/api/v1/nodes")
			for _, i := range list.Items {
				if i.Spec.Unschedulable {
					return fmt.Errorf("some nodes are not schedulable: [%s]", i.Metadata.Name)
				}
			}
			return err
		}},
	}
}

// podsReady requires n ready pods of an application in kube-system; -1 is any number.
func (b *boot) podsReady(ctx context.Context, app string, n int) error {
	list, err := b.kubernetes(ctx, "/api/v1/namespaces/kube-system/pods?labelSelector="+url.QueryEscape("k8s-app="+app))
	if err != nil {
		return err
	}
	if n >= 0 && len(list.Items) != n {
		return fmt.Errorf("expected number of pods for %s to be %d, got %d", app, n, len(list.Items))
	}
	if names := list.unready(); len(names) > 0 {
		return fmt.Errorf("some pods are not ready for %s: %v", app, names)
	}
	return nil
}

// workloadReady requires the pods of a workload in kube-system to be ready, if it exists.
func (b *boot) workloadReady(kind, app string) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := b.kubernetes(ctx, "/apis/apps/v1/namespaces/kube-system/"+kind+"?labelSelector="+url.QueryEscape("k8s-app="+app))
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return errSkip
		}
		return b.podsReady(ctx, app, -1)
	}
}
