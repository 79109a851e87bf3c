package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

const (
	tenant    = "gophers"
	namespace = "gophers/burrows"
)

// Administers the cluster as the library does: every field that is not given is sent as null. Prints each call with its answer.
func administer(url string) error {
	client, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: url})
	if err != nil {
		return err
	}
	clusters, err := client.Clusters().List()
	if err != nil || len(clusters) != 1 {
		return errors.Join(err, fmt.Errorf("there are %d clusters", len(clusters)))
	}
	cluster := clusters[0]
	brokers, err := client.Brokers().GetActiveBrokers(cluster)
	if err != nil || len(brokers) == 0 {
		return errors.Join(err, fmt.Errorf("there are %d brokers", len(brokers)))
	}
	name, err := utils.GetNamespaceName(namespace)
	if err != nil {
		return err
	}
	tenants, namespaces, isolation := client.Tenants(), client.Namespaces(), client.NsIsolationPolicy()
	domain := utils.FailureDomainData{ClusterName: cluster, DomainName: "hill", BrokerList: brokers[:1]}
	data := utils.NamespaceIsolationData{
		Namespaces: []string{"gophers/.*"}, Primary: brokers[:1],
		AutoFailoverPolicy: utils.AutoFailoverPolicyData{
			PolicyType: utils.MinAvailable, Parameters: map[string]string{"min_limit": "1", "usage_threshold": "100"},
		},
	}
	limit := utils.PublishRate{PublishThrottlingRateInMsg: 10, PublishThrottlingRateInByte: -1}
	calls := []struct {
		name string
		call func() (any, error)
	}{
		{"create tenant", done(func() error { return tenants.Create(utils.TenantData{Name: tenant}) })},
		{"create tenant again", done(func() error { return tenants.Create(utils.TenantData{Name: tenant}) })},
		{"update tenant", done(func() error { return tenants.Update(utils.TenantData{Name: tenant, AdminRoles: []string{"digger"}}) })},
		{"get tenant", func() (any, error) { return tenants.Get(tenant) }},
		{"create namespace", done(func() error {
			return namespaces.CreateNsWithPolices(namespace, utils.Policies{Bundles: &utils.BundlesData{NumBundles: 2}})
		})},
		{"list namespaces", func() (any, error) { return namespaces.GetNamespaces(tenant) }},
		{"get policies", func() (any, error) {
			policies, err := namespaces.GetPolicies(namespace)
			if err != nil {
				return nil, err
			}
			return policies.Bundles, nil
		}},
		{"set publish rate", done(func() error { return namespaces.SetPublishRate(*name, limit) })},
		{"get publish rate", func() (any, error) { return namespaces.GetPublishRate(*name) }},
		{"set anti-affinity", done(func() error { return namespaces.SetNamespaceAntiAffinityGroup(namespace, "burrowers") })},
		{"get anti-affinity", func() (any, error) { return namespaces.GetNamespaceAntiAffinityGroup(namespace) }},
		{"list anti-affinity", func() (any, error) { return namespaces.GetAntiAffinityNamespaces(tenant, cluster, "burrowers") }},
		{"delete anti-affinity", done(func() error { return namespaces.DeleteNamespaceAntiAffinityGroup(namespace) })},
		{"create isolation", done(func() error { return isolation.CreateNamespaceIsolationPolicy(cluster, "hills", data) })},
		{"get isolation", func() (any, error) { return isolation.GetNamespaceIsolationPolicy(cluster, "hills") }},
		{"delete isolation", done(func() error { return isolation.DeleteNamespaceIsolationPolicy(cluster, "hills") })},
		{"create failure domain", done(func() error { return client.Clusters().CreateFailureDomain(domain) })},
		{"list failure domains", func() (any, error) {
			domains, err := client.Clusters().ListFailureDomains(cluster)
			return len(domains["hill"].BrokerList), err
		}},
		{"delete failure domain", done(func() error { return client.Clusters().DeleteFailureDomain(domain) })},
		{"split", done(func() error { return namespaces.SplitNamespaceBundle(namespace, "0x00000000_0x80000000", false) })},
		{"unload bundle", done(func() error { return namespaces.UnloadNamespaceBundle(namespace, "0x80000000_0xffffffff") })},
		{"unload", done(func() error { return namespaces.Unload(namespace) })},
		{"get bundles", func() (any, error) {
			policies, err := namespaces.GetPolicies(namespace)
			if err != nil {
				return nil, err
			}
			return policies.Bundles.Boundaries, nil
		}},
		{"delete namespace", done(func() error { return namespaces.DeleteNamespace(namespace) })},
		{"delete tenant", done(func() error { return tenants.Delete(tenant) })},
		{"get tenant again", func() (any, error) { return tenants.Get(tenant) }},
	}
	for _, each := range calls {
		answer, err := each.call()
		text, jsonErr := json.Marshal(answer)
		if err != nil {
			text = []byte(err.Error())
		}
		if _, err := fmt.Fprintf(os.Stdout, "%s: %s\n", each.name, text); err != nil || jsonErr != nil {
			return errors.Join(err, jsonErr)
		}
	}
	return nil
}

// Makes a call whose answer has no content.
func done(call func() error) func() (any, error) {
	return func() (any, error) { return "done", call() }
}
