package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/deploy"
)

func newOperatorCmd(s *streams) *cobra.Command {
	c := &cobra.Command{
		Use: "operator", Short: "Install recast-operator in Kubernetes", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newManifestsCmd(s))
	return c
}

func newManifestsCmd(s *streams) *cobra.Command {
	var o deploy.Options
	c := &cobra.Command{
		Use: "manifests", Short: "Print the Kubernetes objects that recast-operator consists of",
		Long: `Print everything that recast-operator needs as YAML, for kubectl: CRDs, namespace,
access, the Deployment and its network policy. Nothing is read or sent. The same is
available as a Kustomize base and as a Helm chart.`,
		Example: `  recast operator manifests | kubectl apply --server-side -f -
  recast operator manifests --monitoring | kubectl diff --server-side -f -`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if o.Image == "" && strings.HasPrefix(version, "v") {
				o.Image = deploy.Image + ":" + version
			}
			text, err := deploy.Manifests(o)
			if err != nil {
				return errUsage{err}
			}
			_, err = fmt.Fprint(s.out, text)
			return err
		},
	}
	c.Flags().StringVar(&o.Namespace, "namespace", "recast-system", "`namespace` of the operator")
	c.Flags().StringVar(&o.Image, "image", "", "`image` of the operator and of its Jobs (default: "+deploy.Image+" of the version of this program)")
	c.Flags().IntVar(&o.Replicas, "replicas", 2, "`number` of pods; one of them works")
	c.Flags().BoolVar(&o.Monitoring, "monitoring", false, "also a PodMonitor, alerts and a Grafana dashboard; needs the CRDs of the Prometheus operator")
	return c
}
