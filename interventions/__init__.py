"""interventions"""
