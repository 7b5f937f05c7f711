"""The contracts: Vyper sources (`vyper/`), what the compiler made of them (`abi/`), typed calls,
queries and events (`generated/`), and deployments.

    deployment = trusted_deployment.read(path)        # addresses, chain, limits
    Contracts.of(deployment).escrow.deposit(amount)   # a Call: address, data, gas
    deployment.contract(w3, "Escrow")                 # a web3 contract, for any web3 program
"""
