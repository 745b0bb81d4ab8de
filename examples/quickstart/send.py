"""Send five pages for each of four tenants, and show which worker ran them."""

import sys

from shop import ping, sync

sent = {tenant: [sync.delay(tenant, page) for page in range(1, 6)] for tenant in ("ada", "bob", "cyd", "dan")}
ran_by = {tenant: {result.get(timeout=60) for result in results} for tenant, results in sent.items()}
for tenant, workers in ran_by.items():
    print(f"{tenant}: 5 pages, all by {', '.join(sorted(workers))}")
print(f"no key: {ping.delay().get(timeout=60)}")
sys.exit(any(len(workers) != 1 for workers in ran_by.values()))
